//! Times in whole hours, as people write them: `12h`, `30d`.

/// The hours that a text says; `None`: it says none, or more than can be counted.
pub(super) fn parse(text: &str) -> Option<u32> {
    let (number, hours) = match (text.strip_suffix('d'), text.strip_suffix('h')) {
        (Some(days), _) => (days, 24),
        (None, Some(hours)) => (hours, 1),
        (None, None) => return None,
    };
    number.parse::<u32>().ok()?.checked_mul(hours)
}

/// Days where there are only whole ones.
pub(super) fn written(hours: u32) -> String {
    match hours % 24 {
        0 => format!("{}d", hours / 24),
        _ => format!("{hours}h"),
    }
}
