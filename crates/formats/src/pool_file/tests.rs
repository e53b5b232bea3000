use proptest::prelude::*;

use super::*;
use crate::settings::{ClientNet, ExportRule, PartLimit, VolumeName, VolumePart};
use crate::testing::example_pool as example;

/// Both copies are as they were written.
fn good(read: Result<Picked<PoolState, TextFileError>, TextFileError>) -> PoolState {
    let picked = read.unwrap();
    assert_eq!(picked.bad, None);
    picked.value
}

#[test]
fn what_is_encoded_is_decoded() {
    let state = example(6);
    assert_eq!(good(decode_pool(&encode_pool(&state))), state);
}

#[test]
fn the_handle_key_is_readable_or_wrapped_or_elsewhere() {
    use crate::encryption::{MasterKeyId, WRAPPED_LEN_BYTES, WrappedSecret};
    let wrapped = KeptSecret::Wrapped(WrappedSecret::new(vec![7; 64]));
    let key = WrappedKey {
        master_key: MasterKeyId([1; 8]),
        wrapped: [2; WRAPPED_LEN_BYTES],
    };
    for (handle_key, secrets_key) in [
        (Some(HandleKey(5).readable()), None),
        (Some(wrapped), Some(key)),
        (None, Some(key)),
    ] {
        let state = PoolState {
            handle_key,
            secrets_key,
            ..example(2)
        };
        assert_eq!(good(decode_pool(&encode_pool(&state))), state);
    }
    for (text, want) in [
        (HandleKey(5).to_text(), Some(HandleKey(5))),
        (HandleKey(u128::MAX).to_text(), Some(HandleKey(u128::MAX))),
        ("5".to_owned(), None),
        ("+".repeat(32), None),
        ("0".repeat(33), None),
        (String::new(), None),
    ] {
        assert_eq!(HandleKey::from_text(&text), want, "{text:?}");
    }
}

#[test]
fn every_field_is_required() {
    let without = |remove: fn(&mut serde_json::Value)| {
        let mut json = serde_json::to_value(example(2)).unwrap();
        remove(&mut json);
        decode_pool(&encode_file(MAGIC, FORMAT_VERSION, &json.to_string()))
    };
    assert_eq!(good(without(|_| {})), example(2));
    for missing in [
        without(|json| drop(json.as_object_mut().unwrap().remove("left"))),
        without(|json| drop(json["disks"][1].as_object_mut().unwrap().remove("seen"))),
    ] {
        assert!(matches!(missing, Err(TextFileError::Content(_))));
    }
}

#[test]
fn disks_that_left_are_remembered() {
    let mut state = example(3);
    state.remove_disk(DiskId(2));
    assert_eq!((state.disks.len(), state.left.len()), (2, 1));
    assert_eq!(state.left[0].id, DiskId(2));
    assert_eq!(good(decode_pool(&encode_pool(&state))), state);
}

#[test]
fn deleted_volumes_are_remembered() {
    let mut state = example(1);
    let main = state.volumes[0].clone();
    state.delete_volume(main.id);
    assert_eq!(state.deleted, [main.deleted()]);
    assert_eq!(good(decode_pool(&encode_pool(&state))), state.clone());
    for id in 2..=DELETED_MAX as u32 + 1 {
        state.volumes.push(PoolVolume {
            id: VolumeId(id),
            ..main.clone()
        });
        state.delete_volume(VolumeId(id));
    }
    assert_eq!(state.deleted.len(), DELETED_MAX);
    assert_eq!(state.deleted[0].id, VolumeId(2), "the oldest is forgotten");
}

#[test]
fn a_store_goes_with_the_last_volume_in_it() {
    let mut state = example(1);
    let main = state.volumes[0].clone();
    let add_clone = |state: &mut PoolState, name: &str| {
        let id = state.take_volume_id();
        let volume = PoolVolume {
            id,
            name: name.parse().unwrap(),
            exports: Vec::new(),
            ..main.clone()
        };
        let store = main.id;
        state.clones.push(PoolClone { store, volume });
        id
    };
    let first = add_clone(&mut state, "first");
    let second = add_clone(&mut state, "second");
    let store = main.id;
    let again = |state: &PoolState| assert_eq!(good(decode_pool(&encode_pool(state))), *state);
    // While the store's own volume is there it speaks for the store, and stays with it.
    assert_eq!(state.headed_by(main.id).map(|it| it.id), Some(store));
    let mut other = state.clone();
    for id in [second, first] {
        assert_eq!(other.delete_volume(id), Deletion::Clone { store });
    }
    assert_eq!(other.delete_volume(main.id), Deletion::Store(store));
    assert!(other.volumes.is_empty());

    assert_eq!(state.delete_volume(main.id), Deletion::OwnVolume { store });
    again(&state);
    let names: Vec<&str> = state.all_volumes().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
    assert!(state.volume(&main.name).is_err() && state.volume_mut(&main.name).is_err());
    assert_eq!(state.check_new(&main.name), Ok(()), "its name is free");
    assert_eq!(state.name_of(main.id), Some(&main.name));
    assert!(!state.was_deleted(&main), "its store is there");
    assert_eq!(state.headed_by(first).map(|it| it.id), Some(store));
    assert_eq!(state.headed_by(second), None);
    let id = state.take_volume_id();
    state.volumes.push(PoolVolume { id, ..main.clone() });
    again(&state);
    assert_eq!(state.delete_volume(first), Deletion::Clone { store });
    assert_eq!(state.headed_by(second).map(|it| it.id), Some(store));
    assert_eq!(state.delete_volume(second), Deletion::Store(store));
    assert_eq!(state.volumes.len(), 1);
    assert!(state.was_deleted(&main) && state.clones.is_empty());
    assert_eq!(
        state.name_of(second).map(VolumeName::as_str),
        Some("second")
    );
    again(&state);
}

#[test]
fn a_volume_that_comes_back_gets_another_name_if_there_is_one_of_its() {
    let mut state = example(1);
    let main = PoolVolume {
        id: VolumeId(7),
        ..state.volumes[0].clone()
    };
    let name = state.bring_back(&main).unwrap();
    assert_eq!(name.as_str(), "main-7");
    assert_eq!(state.volume_next, VolumeId(8));
    assert_eq!(good(decode_pool(&encode_pool(&state))), state);
}

#[test]
fn a_flipped_bit_costs_one_copy_and_is_noticed() {
    let file = encode_pool(&example(2));
    let half = file.len() / 2;
    for bit in 0..half * 8 {
        let mut bad = file.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let is_damage = matches!(
            decode_pool_copy(&bad[..half]),
            Err(TextFileError::Magic | TextFileError::Checksum)
        );
        assert!(is_damage, "bit {bit}");
    }
    for byte in 0..file.len() {
        let mut bad = file.clone();
        bad[byte] ^= 1 << (byte % 8);
        let picked = decode_pool(&bad).unwrap();
        assert_eq!(picked.value, example(2), "byte {byte}");
        let number = if byte < half { 1 } else { 2 };
        assert_eq!(
            picked.bad.map(|bad| bad.number),
            Some(number),
            "byte {byte}"
        );
    }
}

#[test]
fn two_damaged_copies_are_no_pool_file() {
    let file = encode_pool(&example(2));
    for offset in 0..file.len() / 2 {
        let mut bad = file.clone();
        bad[offset] ^= 0x01;
        bad[file.len() - 1 - offset] ^= 0x01;
        assert!(decode_pool(&bad).is_err(), "byte {offset}");
    }
    for len in 0..file.len() {
        assert!(decode_pool(&file[..len]).is_err(), "cut at {len}");
    }
}

#[test]
fn nonsense_is_refused() {
    type Spoil = fn(&mut PoolState);
    let cases: &[(&str, Spoil)] = &[
        ("no disk", |state| state.disks.clear()),
        ("disk twice", |state| {
            state.disks.push(state.disks[0].clone())
        }),
        ("volume twice", |state| {
            state.volumes.push(state.volumes[0].clone())
        }),
        ("id from the future", |state| {
            state.volume_next = VolumeId(1)
        }),
        ("two rules for the same clients", |state| {
            let rules = &mut state.volumes[0].exports;
            rules.push(rules[0].clone())
        }),
        ("no handle key", |state| {
            state.handle_key = Some(KeptSecret::Readable("5".to_owned()))
        }),
        // The next change would count on, and end the server.
        ("no version after it", |state| state.version = u64::MAX),
    ];
    for (name, spoil) in cases {
        let mut state = example(2);
        spoil(&mut state);
        let result = decode_pool(&encode_pool(&state));
        assert!(matches!(result, Err(TextFileError::Content(_))), "{name}");
    }
}

/// A program that knows a newer version changed the file last, so what can be read elsewhere is older.
#[test]
fn a_newer_version_is_named() {
    let newer = TextFileError::Version { found: 2, known: 1 };
    let whole = encode_file(MAGIC, 2, "{}");
    assert_eq!(decode_pool(&whole), Err(newer.clone()));
    let mut one_damaged = whole.clone();
    one_damaged[0] ^= 1;
    assert_eq!(decode_pool(&one_damaged), Err(newer));
}

#[test]
fn limits_are_set_and_cleared() {
    let mut state = example(1);
    let main: VolumeName = "main".parse().unwrap();
    let limit = |part: &str, iops| PartLimit {
        part: part.parse().unwrap(),
        throughput: None,
        read_throughput: None,
        write_throughput: None,
        iops,
    };
    for (part, iops) in [("lun/b", 5), ("bucket/a", 6), ("lun/b", 7)] {
        state.set_limit(&main, limit(part, Some(iops))).unwrap();
    }
    let wanted = [limit("lun/b", Some(7)), limit("bucket/a", Some(6))];
    assert_eq!(state.volumes[0].limits, wanted);
    assert_eq!(good(decode_pool(&encode_pool(&state))), state);
    let nothing = state.set_limit(&main, limit("lun/b", None));
    assert!(matches!(nothing, Err(ChangeError::LimitProblem { .. })));
    let part: VolumePart = "lun/c".parse().unwrap();
    let absent = state.clear_limit(&main, &part);
    assert!(matches!(absent, Err(ChangeError::NoLimit { .. })));
    state.clear_limit(&main, &wanted[0].part).unwrap();
    assert_eq!(state.volumes[0].limits, wanted[1..]);
    for number in 1..PART_LIMITS_MAX {
        let limit = limit(&format!("lun/{number}"), Some(1));
        state.set_limit(&main, limit).unwrap();
    }
    let more = state.set_limit(&main, limit("lun/more", Some(1)));
    assert_eq!(more, Err(ChangeError::TooManyLimits));
    state.set_limit(&main, limit("bucket/a", Some(9))).unwrap();
    let twice = state.volumes[0].limits[0].clone();
    state.volumes[0].limits[1] = twice;
    let read = decode_pool(&encode_pool(&state));
    assert!(matches!(read, Err(TextFileError::Content(_))));
}

#[test]
fn rules_are_set_and_removed() {
    let mut state = example(1);
    let main: VolumeName = "main".parse().unwrap();
    let other: VolumeName = "other".parse().unwrap();
    let net: ClientNet = "10.0.0.0/8".parse().unwrap();
    let rule = ExportRule::new(net);
    state
        .set_rules(&main, &[rule.clone(), rule.clone()])
        .unwrap();
    assert_eq!(state.volumes[0].exports.len(), 3);
    assert_eq!(
        state.set_rules(&other, &[]),
        Err(ChangeError::NotFound(other))
    );
    state.remove_rules(&main, &[net]).unwrap();
    assert_eq!(state.volumes[0].exports.len(), 2);
    assert!(matches!(
        state.remove_rules(&main, &[net]),
        Err(ChangeError::NoRule { .. })
    ));
    state.remove_rules(&main, &[]).unwrap();
    assert!(state.volumes[0].exports.is_empty());
    let many: Vec<ExportRule> = (0..=CLIENTS_PER_EXPORT_MAX)
        .map(|i| format!("10.0.{}.{}", i / 256, i % 256).parse().unwrap())
        .map(ExportRule::new)
        .collect();
    assert_eq!(
        state.set_rules(&main, &many),
        Err(ChangeError::TooManyRules)
    );
}

#[test]
fn users_are_made_changed_and_deleted() {
    let mut state = example(1);
    let [alice, bob]: [UserName; 2] = ["alice", "bob"].map(|name| name.parse().unwrap());
    let record = crate::testing::example_user();
    assert_eq!(state.add_user(&alice, record.clone()), Ok(()));
    assert_eq!(
        state.add_user(&alice, record.clone()),
        Err(ChangeError::UserExists(alice.clone()))
    );
    state.user_mut(&alice).unwrap().stamp = 8;
    assert_eq!(good(decode_pool(&encode_pool(&state))), state);
    let absent = ChangeError::NoUser(bob.clone());
    assert_eq!(state.user_mut(&bob), Err(absent.clone()));
    assert_eq!(state.delete_user(&bob), Err(absent));
    assert_eq!(state.delete_user(&alice), Ok(()));
    for number in 0..USERS_MAX {
        let name = format!("user{number}").parse().unwrap();
        assert_eq!(state.add_user(&name, record.clone()), Ok(()));
    }
    let full = Err(ChangeError::TooManyUsers);
    assert_eq!(state.add_user(&alice, record.clone()), full);
    assert_eq!(good(decode_pool(&encode_pool(&state))), state);
    state.users.insert(alice, record);
    assert!(decode_pool(&encode_pool(&state)).is_err());
}

#[test]
fn classes_are_made_changed_and_deleted() {
    let mut state = example(1);
    let [gold, premium, none]: [ClassName; 3] =
        ["gold", "premium", "nobody"].map(|name| name.parse().unwrap());
    let spec = ClassSpec {
        throughput: Some(crate::settings::RateSpec::per_tib(128 << 20)),
        ..ClassSpec::default()
    };
    assert_eq!(state.set_class(&gold, spec, true), Ok(()));
    assert!(matches!(
        state.set_class(&gold, spec, true),
        Err(ChangeError::ClassExists(_))
    ));
    assert!(matches!(
        state.set_class(&premium, spec, false),
        Err(ChangeError::ClassBuiltIn(_))
    ));
    assert!(matches!(
        state.set_class(&none, spec, false),
        Err(ChangeError::NoClass(_))
    ));
    assert!(matches!(
        state.set_class(&none, ClassSpec::default(), true),
        Err(ChangeError::ClassProblem { .. })
    ));
    state.volumes[0].class = Some(gold.clone());
    state.volumes[0].settings.size_limit = crate::settings::SizeLimit::None;
    assert!(state.check_class_of(&state.volumes[0]).is_err());
    state.volumes[0].settings.size_limit = crate::settings::SizeLimit::Bytes(1 << 40);
    assert_eq!(state.check_class_of(&state.volumes[0]), Ok(()));
    assert_eq!(good(decode_pool(&encode_pool(&state))), state);
    let refused = state.delete_class(&gold).unwrap_err();
    assert!(refused.to_string().contains("by main"), "{refused}");
    state.volumes[0].class = None;
    assert_eq!(state.delete_class(&gold), Ok(()));
    assert_eq!(state.delete_class(&gold), Err(ChangeError::NoClass(gold)));
    assert!(state.delete_class(&premium).is_err());
}

#[test]
fn what_could_not_be_read_again_is_refused() {
    let mut state = example(1);
    let rules = (0..CLIENTS_PER_EXPORT_MAX).map(|i| {
        let net = format!("2001:db8:aaaa:bbbb:cccc:dddd:eeee:{:x}", 0x1000 + i);
        let mut rule = ExportRule::new(net.parse().unwrap());
        (rule.anonymous_uid, rule.anonymous_gid) = (u32::MAX - 1, u32::MAX - 1);
        rule
    });
    let volume = PoolVolume {
        exports: rules.collect(),
        ..state.volumes[0].clone()
    };
    state.volumes = (0..VOLUMES_MAX as u32)
        .map(|id| PoolVolume {
            id: VolumeId(id),
            name: format!("{id:063}").parse().unwrap(),
            ..volume.clone()
        })
        .collect();
    state.volume_next = VolumeId(VOLUMES_MAX as u32);
    let len_bytes = encode_pool(&state).len() as u64;
    assert!(len_bytes > POOL_FILE_LEN_BYTES_MAX, "{len_bytes}");
    assert_eq!(state.check_len(), Err(ChangeError::TooLong { len_bytes }));
    state.volumes.truncate(VOLUMES_MAX / 2);
    assert_eq!(state.check_len(), Ok(()));
}

#[test]
fn volume_ids_and_names_are_given_once() {
    let mut state = example(1);
    assert_eq!(state.take_volume_id(), VolumeId(2));
    assert_eq!(state.take_volume_id(), VolumeId(3));
    let main: VolumeName = "main".parse().unwrap();
    assert_eq!(state.check_new(&main), Err(ChangeError::Exists(main)));
    assert_eq!(state.check_new(&"new".parse().unwrap()), Ok(()));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_pool(&bytes);
    }
}
