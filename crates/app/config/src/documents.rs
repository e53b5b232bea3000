//! Texts made from the declarations of the settings: the config file that packages install, and the page of settings.
//!
//! Must not know: which settings there are. The tests compare the committed files with these texts.

use crate::declare::{Setting, Shape};
use crate::server::Settings;

/// Longest line of a comment in the config file, in bytes. A longer word has a line of its own.
const COMMENT_LEN_BYTES_MAX: usize = 100;

/// The config file that packages install: `packaging/cairn.toml`. It shows every setting.
pub fn config_file() -> String {
    let mut text = String::new();
    comment(
        &mut text,
        "Cairn's config file. Almost every key is also a flag of `cairn serve` (listen_nfs is --listen-nfs), and flags win. Relative \
         paths count from the folder of this file. Check it with `cairn config check /etc/cairn/cairn.toml`.",
    );
    for setting in Settings::all() {
        if !setting.facts.heading.is_empty() {
            text.push_str(&format!("\n## {}\n", setting.facts.heading));
        }
        if !setting.facts.intro.is_empty() {
            text.push('\n');
            comment(&mut text, setting.facts.intro);
        }
        text.push('\n');
        comment(&mut text, &format!("{}.", setting.meaning()));
        if let Some(default) = setting.default_text() {
            comment(&mut text, &format!("Default: {default}"));
        }
        let mark = if setting.facts.is_set_by_packages {
            ""
        } else {
            "#"
        };
        text.push_str(&format!("{mark}{} = {}\n", setting.key, setting.example()));
    }
    text
}

/// The page of all settings: `docs/reference/settings.md`.
pub fn settings_page() -> String {
    let mut text = String::from(
        "# Settings of a server\n\
         \n\
         Each setting is a key of the config file (`cairn serve --config FILE`) and, unless its row says otherwise, a flag of `cairn serve`:\n\
         `listen_nfs` is `--listen-nfs`. A flag wins over the file, and the file over the default. Relative paths in the file count from its\n\
         folder. `cairn config check FILE` reports every mistake with its line.\n\
         \n\
         The declarations in `crates/app/config` make this page ([how to add a setting](../../CONTRIBUTING.md#a-new-setting)).\n",
    );
    for setting in Settings::all() {
        if !setting.facts.heading.is_empty() {
            text.push_str(&format!("\n## {}\n\n", setting.facts.heading));
            if !setting.facts.intro.is_empty() {
                text.push_str(&format!("{}\n\n", setting.facts.intro));
            }
            text.push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
        }
        let list = if setting.is_list() { ", a list" } else { "" };
        let default = setting.default_text().unwrap_or_default();
        let mut meaning = setting.meaning();
        if setting.facts.in_file_only {
            meaning.push_str(". In the config file only");
        }
        if let Some(variable) = setting.facts.env {
            meaning.push_str(&format!(
                ". The variable `{variable}` sets it, unless the flag does"
            ));
        }
        let cells = [
            format!("`{}`", setting.key),
            format!("`{}`{list}", value_of(setting)),
            default,
            meaning,
        ];
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        text.push_str(&format!(
            "| {} |\n",
            cells.join(" | ").replace("|  |", "| |")
        ));
    }
    text
}

fn value_of(setting: &Setting) -> &'static str {
    match setting.shape {
        Shape::Switch => "true|false",
        Shape::One | Shape::List | Shape::OneOrList => setting.facts.value_name,
    }
}

fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > COMMENT_LEN_BYTES_MAX && line != "#" {
            text.push_str(&line);
            text.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::file::parse_file;

    /// Compares a committed file with what the declarations give; `GOLDEN=write` writes it anew.
    fn check(path: &str, made: &str) {
        // Asked at run time: tests compiled in one clone may run in another.
        let package = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs the tests");
        let path: PathBuf = Path::new(&package).join("../../..").join(path);
        if std::env::var_os("GOLDEN").is_some_and(|what| what == "write") {
            std::fs::write(&path, made).expect("the file is written");
        }
        let kept = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(
            kept == made,
            "{} differs from the declarations of the settings: write it anew with \
             GOLDEN=write cargo test --profile fast -p cairn-config documents",
            path.display()
        );
    }

    #[test]
    fn documents_are_those_of_the_declarations() {
        check("packaging/cairn.toml", &config_file());
        check("docs/reference/settings.md", &settings_page());
    }

    #[test]
    fn the_config_file_is_right_as_it_is_and_with_each_setting() {
        let file = config_file();
        let settings = parse_file(&file, Path::new("/etc/cairn")).unwrap();
        assert!(settings.resolve(1).is_ok());
        for setting in Settings::all() {
            let shown = format!("{} = ", setting.key);
            let mut lines = file.lines().map(|line| line.trim_start_matches('#'));
            let line = lines.find(|line| line.starts_with(&shown)).unwrap();
            let given = parse_file(line, Path::new("/etc/cairn"));
            assert!(
                given.is_ok_and(|given| given != Settings::default()),
                "{line}"
            );
        }
    }

    #[test]
    fn meanings_fit_into_help_and_tables() {
        for setting in Settings::all() {
            let meaning = setting.meaning();
            assert!(
                !meaning.ends_with('.') && !meaning.is_empty(),
                "{}",
                setting.key
            );
            let other = setting.facts.conflicts_with;
            assert!(other.is_none_or(|other| Settings::all().iter().any(|it| it.key == other)));
        }
    }
}
