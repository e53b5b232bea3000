//! `cairn lun`, `cairn igroup`, `cairn initiator`, `cairn iscsi`.

use std::io::{BufRead, IsTerminal};
use std::path::Path;

use cairn_admin::Client;
use cairn_admin::endpoint::Force;
use cairn_admin::san::{
    IGROUP_LIST, IGROUP_REMOVE, IGROUP_SET, INITIATOR_LIST, INITIATOR_REMOVE, INITIATOR_SET,
    IgroupName, IgroupSet, IgroupView, InitiatorName, InitiatorSet, InitiatorView, LUN_CLONE,
    LUN_CREATE, LUN_DELETE, LUN_LIST, LUN_MAP, LUN_RESTORE, LUN_SET, LUN_SHOW, LUN_UNMAP, LunClone,
    LunCreate, LunMapSet, LunReserve, LunRestore, LunSet, LunView, SESSION_LIST,
};
use cairn_admin::snapshots::{SNAPSHOT_CREATE, SnapshotCreate};
use cairn_admin::volumes::VOLUME_SHOW;
use cairn_base::units::format_size;
use cairn_config::Size;

use crate::access;
use crate::args::{ServerArgs, ViewArgs};
use crate::exit::Failure;
use crate::host_plan::{HostPlan, PlanLun, STRIPE_LEN_BYTES_MAX, STRIPE_LEN_BYTES_MIN};
use crate::print::{self, Align, Column};
use crate::san_args::*;

pub fn lun(command: &LunCommand) -> Result<(), Failure> {
    match command {
        LunCommand::List(view) => {
            let list = access::client(&view.server)?.all(LUN_LIST, &())?;
            if view.json {
                return print::json(&list);
            }
            print::text(&lun_table(&list.luns))
        }
        LunCommand::Show(args) => shown(
            &access::client(&args.view.server)?.ask(LUN_SHOW, &args.lun.lun())?,
            &args.view,
        ),
        LunCommand::Create(args) if args.thick => Err(Failure::usage(
            "LUNs are thin: they take no space until they are written, so --thick does not exist",
        )
        .hint("--reserve full reserves the space of a LUN")),
        LunCommand::Create(args) => {
            let create = LunCreate {
                volume: args.lun.volume.clone(),
                name: args.lun.name.clone(),
                size_bytes: args.size.0,
                block_bytes: args.block_size,
                write_cache: args.write_cache,
                reserve: args.reserve.into(),
            };
            let lun = access::client(&args.view.server)?.tell(LUN_CREATE, &(), &create)?;
            if args.view.json {
                return print::json(&lun);
            }
            print::text(&format!(
                "LUN {} created: {}\nno host sees it yet:\n  cairn igroup create {}/GROUP --initiator IQN\n  cairn lun map {} --igroup GROUP",
                args.lun,
                format_size(lun.size_bytes),
                args.lun.volume,
                args.lun
            ))
        }
        LunCommand::Clone(args) => {
            let clone = LunClone {
                name: args.name.clone(),
                snapshot: args.snapshot.clone(),
            };
            let lun =
                access::client(&args.view.server)?.tell(LUN_CLONE, &args.lun.lun(), &clone)?;
            if args.view.json {
                return print::json(&lun);
            }
            print::text(&format!(
                "LUN {}/{} is a clone of {}, and shares its blocks\nno host sees it yet:\n  cairn lun map {}/{} --igroup GROUP",
                args.lun.volume, args.name, args.lun, args.lun.volume, args.name
            ))
        }
        LunCommand::Snapshot(args) => {
            let client = access::client(&args.view.server)?;
            // Of a LUN that is not there nobody wants a snapshot.
            client.ask(LUN_SHOW, &args.lun.lun())?;
            let create = SnapshotCreate {
                name: args.name.clone(),
            };
            let taken = client.tell(SNAPSHOT_CREATE, &args.lun.volume, &create)?;
            if args.view.json {
                return print::json(&taken);
            }
            print::text(&format!(
                "snapshot {} of volume {} has LUN {}:\n  cairn lun clone {} NAME --snapshot {}\n  cairn lun restore {} --snapshot {}",
                taken.name, taken.volume, args.lun, args.lun, taken.name, args.lun, taken.name
            ))
        }
        LunCommand::Restore(args) => {
            let restore = LunRestore {
                snapshot: args.snapshot.clone(),
            };
            let client = access::client(&args.view.server)?;
            shown(
                &client.tell(LUN_RESTORE, &args.lun.lun(), &restore)?,
                &args.view,
            )
        }
        LunCommand::Resize(args) => {
            let set = LunSet {
                size_bytes: Some(args.size.0),
                shrink: args.shrink,
                ..LunSet::default()
            };
            shown(
                &access::client(&args.view.server)?.tell(LUN_SET, &args.lun.lun(), &set)?,
                &args.view,
            )
        }
        LunCommand::Set(args) => {
            let set = LunSet {
                write_cache: args.write_cache.map(|switch| switch == Switch::On),
                read_only: args.read_only.map(|switch| switch == Switch::On),
                soft_threshold_percent: args.soft_threshold,
                reserve: args.reserve.map(LunReserve::from),
                ..LunSet::default()
            };
            if set == LunSet::default() {
                return Err(Failure::usage("no setting to change is given")
                    .hint("`cairn lun set --help` lists the settings"));
            }
            shown(
                &access::client(&args.view.server)?.tell(LUN_SET, &args.lun.lun(), &set)?,
                &args.view,
            )
        }
        LunCommand::Online(args) => online(args, true),
        LunCommand::Offline(args) => online(args, false),
        LunCommand::Delete(args) => delete(args),
        LunCommand::Map(args) => {
            let map = LunMapSet {
                number: args.lun_id,
            };
            let lun = access::client(&args.view.server)?.tell(
                LUN_MAP,
                &(args.lun.lun(), IgroupName(args.igroup.clone())),
                &map,
            )?;
            if args.view.json {
                return print::json(&lun);
            }
            let number = lun
                .maps
                .iter()
                .find(|map| map.igroup == args.igroup)
                .map_or(0, |map| map.number);
            print::text(&format!(
                "group {} sees {} as LUN {number}\n{}",
                args.igroup,
                args.lun,
                how_to(&lun)
            ))
        }
        LunCommand::Unmap(args) => {
            let client = access::client(&args.view.server)?;
            shown(
                &client.ask(
                    LUN_UNMAP,
                    &(args.lun.lun(), IgroupName(args.igroup.clone())),
                )?,
                &args.view,
            )
        }
    }
}

/// What hosts type.
fn how_to(lun: &LunView) -> String {
    let target = &lun.target;
    let portals = match lun.portals.is_empty() {
        true => "where this server listens for iSCSI (--listen-iscsi)".to_owned(),
        false => lun.portals.join(" or "),
    };
    format!(
        "Linux:    iscsiadm -m discovery -t st -p PORTAL && iscsiadm -m node -T {target} -l\n\
         Windows:  New-IscsiTargetPortal -TargetPortalAddress PORTAL; Connect-IscsiTarget -NodeAddress {target} -IsPersistent $true\n\
         VMware:   esxcli iscsi adapter discovery sendtarget add -A vmhba64 -a PORTAL && esxcli storage core adapter rescan --all\n\
         PORTAL is {portals}\n\
         several LUNs, several paths: `cairn san plan-host --help`"
    )
}

fn online(args: &LunShowArgs, online: bool) -> Result<(), Failure> {
    let set = LunSet {
        online: Some(online),
        ..LunSet::default()
    };
    shown(
        &access::client(&args.view.server)?.tell(LUN_SET, &args.lun.lun(), &set)?,
        &args.view,
    )
}

fn delete(args: &LunDeleteArgs) -> Result<(), Failure> {
    let client = access::client(&args.view.server)?;
    if !args.yes {
        let lun = client.ask(LUN_SHOW, &args.lun.lun())?;
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Err(Failure::usage(
                "deletion asks for the LUN's name, but there is no terminal",
            )
            .hint("add --yes to delete without being asked"));
        }
        print::ask(&format!(
            "This deletes {} with {} for good.\nType its name to continue: ",
            args.lun,
            format_size(lun.used_bytes)
        ));
        if line()? != args.lun.name {
            return Err(Failure::refused(
                "that is not the name of the LUN; nothing was deleted",
            ));
        }
    }
    client.ask(LUN_DELETE, &(args.lun.lun(), Force(args.force)))?;
    if args.view.json {
        return print::json(&serde_json::json!({ "deleted": args.lun.path() }));
    }
    print::text(&format!("LUN {} deleted", args.lun))
}

fn line() -> Result<String, Failure> {
    let mut answer = String::new();
    let read = std::io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Failure::failed(format!("reading the answer: {error}")))?;
    Ok(answer.trim_end_matches(['\r', '\n']).to_owned())
}

fn yes_or_no(is_yes: bool) -> &'static str {
    if is_yes { "yes" } else { "no" }
}

fn maps(lun: &LunView) -> String {
    let maps = lun
        .maps
        .iter()
        .map(|map| format!("{}:{}", map.igroup, map.number));
    maps.collect::<Vec<_>>().join(" ")
}

fn shown(lun: &LunView, view: &ViewArgs) -> Result<(), Failure> {
    if view.json {
        return print::json(lun);
    }
    let lines = [
        format!("name         {}/{}", lun.volume, lun.name),
        format!("size         {}", format_size(lun.size_bytes)),
        format!("used         {}", format_size(lun.used_bytes)),
        format!(
            "set aside    {}",
            match lun.reserve {
                LunReserve::None => "nothing",
                LunReserve::Full => "the whole size",
            }
        ),
        format!("block size   {}", lun.block_bytes),
        format!("online       {}", yes_or_no(lun.online)),
        format!("read-only    {}", yes_or_no(lun.read_only)),
        format!("write cache  {}", yes_or_no(lun.write_cache)),
        format!(
            "warns hosts  {}",
            match lun.soft_threshold_percent {
                0 => "never".to_owned(),
                percent => format!("when {percent}% of the volume's space is free"),
            }
        ),
        format!("identity     naa.{}", lun.naa),
        format!("target       {}", lun.target),
        format!(
            "portals      {}",
            match lun.portals.is_empty() {
                true => "none; start the server with --listen-iscsi ADDR:3260".to_owned(),
                false => lun.portals.join(" "),
            }
        ),
        format!(
            "mapped to    {}",
            if lun.maps.is_empty() {
                "nobody".to_owned()
            } else {
                maps(lun)
            }
        ),
    ];
    print::text(&lines.join("\n"))
}

fn lun_table(luns: &[LunView]) -> String {
    const COLUMNS: &[Column] = &[
        ("LUN", Align::Left),
        ("SIZE", Align::Right),
        ("USED", Align::Right),
        ("BLOCK", Align::Right),
        ("STATE", Align::Left),
        ("MAPS", Align::Left),
    ];
    let rows = luns.iter().map(|lun| {
        let state = match (lun.online, lun.read_only) {
            (false, _) => "OFFLINE",
            (true, true) => "read-only",
            (true, false) => "online",
        };
        vec![
            format!("{}/{}", lun.volume, lun.name),
            format_size(lun.size_bytes).to_string(),
            format_size(lun.used_bytes).to_string(),
            lun.block_bytes.to_string(),
            state.to_owned(),
            maps(lun),
        ]
    });
    print::table(COLUMNS, rows.collect())
}

pub fn igroup(command: &IgroupCommand) -> Result<(), Failure> {
    match command {
        IgroupCommand::List(view) => {
            let list = access::client(&view.server)?.ask(IGROUP_LIST, &())?;
            if view.json {
                return print::json(&list);
            }
            const COLUMNS: &[Column] = &[
                ("GROUP", Align::Left),
                ("HOSTS", Align::Left),
                ("INITIATORS", Align::Left),
            ];
            let rows = list.igroups.iter().map(|igroup| {
                vec![
                    format!("{}/{}", igroup.volume, igroup.name),
                    igroup.os.map(|os| os.to_string()).unwrap_or_default(),
                    igroup.initiators.join(" "),
                ]
            });
            print::text(&print::table(COLUMNS, rows.collect()))
        }
        IgroupCommand::Create(args) => {
            let set = IgroupSet {
                initiators: args.initiator.clone(),
                os: args.os,
            };
            let igroup =
                access::client(&args.view.server)?.tell(IGROUP_SET, &args.igroup.igroup(), &set)?;
            if args.view.json {
                return print::json(&igroup);
            }
            print::text(&format!(
                "group {} has {} initiators",
                args.igroup,
                igroup.initiators.len()
            ))
        }
        IgroupCommand::Remove(args) => {
            access::client(&args.view.server)?.ask(IGROUP_REMOVE, &args.igroup.igroup())?;
            if args.view.json {
                return print::json(&serde_json::json!({ "removed": args.igroup.path() }));
            }
            print::text(&format!("group {} removed", args.igroup))
        }
    }
}

pub fn initiator(command: &InitiatorCommand) -> Result<(), Failure> {
    match command {
        InitiatorCommand::List(view) => {
            let list = access::client(&view.server)?.ask(INITIATOR_LIST, &())?;
            if view.json {
                return print::json(&list);
            }
            const COLUMNS: &[Column] = &[
                ("VOLUME", Align::Left),
                ("INITIATOR", Align::Left),
                ("CHAP USER", Align::Left),
                ("MUTUAL USER", Align::Left),
            ];
            let rows = list.initiators.into_iter().map(|initiator| {
                let mutual = initiator.mutual_user.unwrap_or_default();
                vec![
                    initiator.volume.to_string(),
                    initiator.name,
                    initiator.chap_user,
                    mutual,
                ]
            });
            print::text(&print::table(COLUMNS, rows.collect()))
        }
        InitiatorCommand::Set(args) => {
            let client = access::client(&args.view.server)?;
            let chap_secret = secret(
                args.secret_file.as_deref(),
                &format!("CHAP secret of {}", args.chap_user),
            )?;
            let mutual_secret = match &args.mutual_user {
                Some(user) => Some(secret(
                    args.mutual_secret_file.as_deref(),
                    &format!("secret of the target, {user}"),
                )?),
                None => None,
            };
            let set = InitiatorSet {
                chap_user: args.chap_user.clone(),
                chap_secret,
                mutual_user: args.mutual_user.clone(),
                mutual_secret,
            };
            let initiator = client.tell(
                INITIATOR_SET,
                &(args.volume.clone(), InitiatorName(args.initiator.clone())),
                &set,
            )?;
            if args.view.json {
                return print::json(&initiator);
            }
            print::text(&format!(
                "{} must use CHAP from its next login on",
                args.initiator
            ))
        }
        InitiatorCommand::Remove(args) => {
            access::client(&args.view.server)?.ask(
                INITIATOR_REMOVE,
                &(args.volume.clone(), InitiatorName(args.initiator.clone())),
            )?;
            if args.view.json {
                return print::json(&serde_json::json!({ "removed": args.initiator }));
            }
            print::text(&format!("{} needs no CHAP secret now", args.initiator))
        }
    }
}

/// A secret from a file or from the terminal, where it does not show; never from the arguments, which others see.
fn secret(file: Option<&Path>, what: &str) -> Result<String, Failure> {
    if let Some(file) = file {
        let text = std::fs::read_to_string(file)
            .map_err(|error| Failure::failed(format!("reading {}: {error}", file.display())))?;
        return Ok(text.trim_end_matches(['\r', '\n']).to_owned());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(
            Failure::usage("the command asks for a secret, but there is no terminal").hint(
                "put the secret into a file, and give that file with --secret-file (and --mutual-secret-file)",
            ),
        );
    }
    let typed = crate::secret::Terminal::open()?.ask(&format!("{what}: "))?;
    Ok(typed.as_str().to_owned())
}

pub fn san(command: &SanCommand) -> Result<(), Failure> {
    let SanCommand::PlanHost(args) = command;
    if let Some(Size(size)) = args.stripe_size
        && !(size.is_power_of_two()
            && (STRIPE_LEN_BYTES_MIN..=STRIPE_LEN_BYTES_MAX).contains(&size))
    {
        return Err(Failure::usage(
            "a stripe size is a power of two from 4KiB to 4MiB",
        ));
    }
    if let Some(mount) = &args.mount
        && (!mount.starts_with('/') || mount.contains(char::is_whitespace))
    {
        return Err(Failure::usage(format!(
            "\"{mount}\" is not a mount point: give an absolute path without spaces"
        )));
    }
    let mut servers: Vec<ServerArgs> = Vec::new();
    for system in &args.system {
        servers.push(ServerArgs {
            login: args.view.server.login.clone(),
            login_password_file: args.view.server.login_password_file.clone(),
            ca: args.view.server.ca.clone(),
            server: Some(system.url.clone()),
            state_dir: None,
            insecure: args.view.server.insecure,
            token_file: system
                .token_file
                .clone()
                .or_else(|| args.view.server.token_file.clone()),
        });
    }
    if servers.is_empty() {
        servers.push(args.view.server.clone());
    }
    let mut luns: Vec<PlanLun> = Vec::new();
    for server in &servers {
        let client = access::client(server)?;
        let (igroups, initiators) = (
            client.ask(IGROUP_LIST, &())?.igroups,
            client.ask(INITIATOR_LIST, &())?.initiators,
        );
        for path in &args.luns {
            let lun = plan_lun(&client, path, &args.initiator, &igroups, &initiators)?;
            if luns.iter().any(|known| known.naa == lun.naa) {
                return Err(Failure::usage(format!(
                    "LUN {path} is given twice, or two addresses lead to the same system"
                )));
            }
            luns.push(lun);
        }
    }
    let plan = HostPlan {
        luns,
        initiator: args.initiator.clone(),
        sessions: args.sessions,
        group: args.lvm.volume.to_string(),
        volume: args.lvm.name.clone(),
        file_system: args.fs,
        mount: args.mount.clone(),
        stripe_len_bytes: args.stripe_size.map(|size| size.0),
    };
    if args.view.json {
        return print::json(&serde_json::json!({ "script": plan.script() }));
    }
    print::text(&plan.script())
}

/// A LUN that the host sees.
fn plan_lun(
    client: &Client,
    path: &InVolume,
    initiator: &str,
    igroups: &[IgroupView],
    initiators: &[InitiatorView],
) -> Result<PlanLun, Failure> {
    let lun = client.ask(LUN_SHOW, &path.lun())?;
    let has = |igroup: &&IgroupView| {
        igroup.volume == lun.volume && igroup.initiators.iter().any(|member| member == initiator)
    };
    let groups: Vec<&str> = igroups
        .iter()
        .filter(has)
        .map(|igroup| igroup.name.as_str())
        .collect();
    if !lun
        .maps
        .iter()
        .any(|map| groups.contains(&map.igroup.as_str()))
    {
        return Err(Failure::refused(format!("{initiator} does not see LUN {path}"))
            .hint(format!("cairn igroup create {}/GROUP --initiator {initiator}; cairn lun map {path} --igroup GROUP", path.volume)));
    }
    if lun.portals.is_empty() {
        return Err(Failure::refused(format!(
            "hosts cannot reach LUN {path}: its system does not serve iSCSI"
        ))
        .hint("start it with --listen-iscsi ADDR:3260"));
    }
    let proof = initiators
        .iter()
        .find(|set| set.volume == lun.volume && set.name == initiator);
    Ok(PlanLun {
        path: path.path(),
        size_bytes: lun.size_bytes,
        naa: lun.naa,
        target: lun.target,
        portals: lun.portals,
        access_pattern: client
            .ask(VOLUME_SHOW, &lun.volume)?
            .settings
            .access_pattern,
        chap: proof.map(|set| (set.chap_user.clone(), set.mutual_user.clone())),
    })
}

pub fn iscsi(command: &IscsiCommand) -> Result<(), Failure> {
    let IscsiCommand::Sessions(view) = command;
    let list = access::client(&view.server)?.ask(SESSION_LIST, &())?;
    if view.json {
        return print::json(&list);
    }
    const COLUMNS: &[Column] = &[
        ("INITIATOR", Align::Left),
        ("TARGET", Align::Left),
        ("ADDRESS", Align::Left),
        ("PORTAL GROUP", Align::Right),
        ("CONNECTIONS", Align::Right),
    ];
    let rows = list.sessions.into_iter().map(|session| {
        let target = session.target.unwrap_or_else(|| "discovery".to_owned());
        let group = session.portal_group.to_string();
        let connections = session.connections.to_string();
        vec![
            session.initiator,
            target,
            session.address,
            group,
            connections,
        ]
    });
    print::text(&print::table(COLUMNS, rows.collect()))
}
