use super::*;

const GOOD: Evidence = Evidence {
    hangs: false,
    ops: 100,
    nanos: 100 * 1_000_000,
    errors: 0,
    is_suspect: false,
    is_out: false,
};
const HANGS: Evidence = Evidence {
    hangs: true,
    ops: 0,
    nanos: 0,
    ..GOOD
};
const IDLE: Evidence = Evidence {
    ops: 0,
    nanos: 0,
    ..GOOD
};
const SLOW: Evidence = Evidence {
    nanos: 100 * 200_000_000,
    ..GOOD
};
const OUT: Evidence = Evidence {
    is_out: true,
    ..GOOD
};
/// One error in a look, as a probe of a disk that fails gives.
const ONE_ERROR: Evidence = Evidence { errors: 1, ..GOOD };
/// So many errors in a row that the data path does without it.
const BURST: Evidence = Evidence {
    ops: 100,
    errors: 100,
    is_suspect: true,
    ..GOOD
};
/// Only probes, which fail.
const DEAD: Evidence = Evidence {
    ops: 1,
    errors: 1,
    nanos: 1_000_000,
    ..GOOD
};
/// Only probes, which go well.
const PROBED: Evidence = Evidence {
    ops: 3,
    nanos: 3_000_000,
    ..GOOD
};

/// Those who write to both wait for the one.
fn few(millis: u64) -> Evidence {
    Evidence {
        ops: 1,
        nanos: millis * 1_000_000,
        ..GOOD
    }
}

/// What became of the disks: out and read as a last resort, given up, suspected still, spared with a reason.
#[derive(Debug, Default, PartialEq, Eq)]
struct Fate {
    out: Vec<usize>,
    given_up: Vec<usize>,
    suspect: Vec<usize>,
    spared: Vec<usize>,
}

/// Looks as often at each row of evidence. A verdict holds for the looks that follow.
fn fate(rows: &[(u32, Vec<Evidence>)], spare: usize) -> (Fate, String) {
    let count = rows[0].1.len();
    let mut histories = vec![History::default(); count];
    let (mut is_out, mut is_suspect) = (vec![false; count], vec![false; count]);
    let (mut fate, mut told) = (Fate::default(), String::new());
    for (times, row) in rows {
        for _ in 0..*times {
            let seen = (0..count).map(|index| {
                is_suspect[index] |= row[index].is_suspect;
                Evidence {
                    is_suspect: is_suspect[index] && !is_out[index],
                    is_out: is_out[index] || row[index].is_out,
                    ..row[index]
                }
            });
            let seen: Vec<Evidence> = seen.collect();
            let left = spare.saturating_sub(is_out.iter().filter(|out| **out).count());
            let verdicts = judge(&seen, &mut histories, left, Duration::from_secs(30));
            // Spared as of the last look.
            fate.spared.clear();
            for (index, verdict) in verdicts.into_iter().enumerate() {
                match verdict {
                    Verdict::Stays => {}
                    Verdict::Cleared => is_suspect[index] = false,
                    Verdict::Spared(why) => {
                        fate.spared.push(index);
                        told = why;
                    }
                    Verdict::Out(why) => {
                        is_out[index] = true;
                        fate.out.push(index);
                        told = why;
                    }
                    Verdict::GivenUp(why) => {
                        if !fate.given_up.contains(&index) {
                            fate.given_up.push(index);
                        }
                        is_out[index] = true;
                        told = why;
                    }
                }
            }
        }
    }
    let suspect = (0..count).filter(|index| is_suspect[*index] && !is_out[*index]);
    fate.suspect = suspect.collect();
    (fate, told)
}

#[test]
fn what_hangs_or_is_slow_is_given_up() {
    // Evidence on the disks, at how many looks, disks to spare; which are given up then.
    type Case<'a> = (&'a str, Vec<Evidence>, u32, usize, &'a [usize]);
    let cases: Vec<Case> = vec![
        ("all well", vec![GOOD; 6], 100, 2, &[]),
        ("one hangs", vec![GOOD, HANGS, GOOD], 1, 2, &[1]),
        ("one hangs, one to spare", vec![GOOD, HANGS], 1, 1, &[1]),
        ("one hangs, none to spare", vec![GOOD, HANGS], 1, 0, &[]),
        ("all of six hang", vec![HANGS; 6], 1, 2, &[0, 1]),
        (
            "slow for a moment",
            vec![SLOW, GOOD, GOOD],
            SLOW_LOOKS - 1,
            2,
            &[],
        ),
        ("slow for long", vec![SLOW, GOOD, GOOD], SLOW_LOOKS, 2, &[0]),
        (
            "slow, none to spare",
            vec![SLOW, GOOD, GOOD],
            SLOW_LOOKS,
            0,
            &[],
        ),
        (
            "so slow that little is done",
            vec![few(600), few(5), few(5)],
            SLOW_LOOKS + SLOW_OPS_MIN as u32 - 1,
            2,
            &[0],
        ),
        ("all slow", vec![SLOW; 4], 100, 2, &[]),
        ("alone and slow", vec![SLOW], 100, 2, &[]),
        ("alone and hangs", vec![HANGS], 1, 0, &[]),
        ("the last one hangs", vec![OUT, HANGS], 1, 0, &[]),
        ("all hang", vec![HANGS; 3], 1, 2, &[0, 1]),
        ("idle", vec![IDLE; 3], 100, 2, &[]),
        ("out already", vec![OUT, GOOD], 1, 2, &[]),
        (
            "out, and hangs now",
            vec![
                Evidence {
                    is_out: true,
                    ..HANGS
                },
                GOOD,
            ],
            1,
            0,
            &[0],
        ),
        (
            "two to put out, one to spare",
            vec![SLOW, SLOW, GOOD, GOOD, GOOD],
            SLOW_LOOKS,
            1,
            &[0],
        ),
    ];
    for (name, row, times, spare, want) in cases {
        let (got, _) = fate(&[(times, row)], spare);
        assert_eq!(got.given_up, want, "{name}: {got:?}");
        assert_eq!(got.out, [0; 0], "{name}");
    }
}

#[test]
fn what_fails_is_put_out_unless_others_fail_with_it() {
    let settle = SETTLE_LOOKS;
    let limit = ERRORS_MAX as u32 + settle - 1;
    // The evidence, disks to spare, who is out, who is suspect, who is spared; a word of the reason.
    type Rows = Vec<(u32, Vec<Evidence>)>;
    type Case<'a> = (&'a str, Rows, usize, [&'a [usize]; 3], &'a str);
    let cases: Vec<Case> = vec![
        (
            "errors for some time",
            vec![(limit - 1, vec![ONE_ERROR, GOOD])],
            2,
            [&[], &[], &[]],
            "",
        ),
        (
            "errors again and again",
            vec![(limit, vec![ONE_ERROR, GOOD])],
            2,
            [&[0], &[], &[]],
            "operations failed within 60 s",
        ),
        (
            "errors again and again, none to spare",
            vec![(limit, vec![ONE_ERROR, GOOD])],
            0,
            [&[], &[], &[0]],
            "cannot be read without it",
        ),
        (
            "one fails all at once",
            vec![
                (1, vec![GOOD, BURST, GOOD]),
                (settle - 1, vec![GOOD, DEAD, GOOD]),
            ],
            2,
            [&[1], &[], &[]],
            "operations failed within",
        ),
        (
            "it is waited whether others fail, too",
            vec![
                (1, vec![GOOD, BURST, GOOD]),
                (settle - 2, vec![GOOD, DEAD, GOOD]),
            ],
            2,
            [&[], &[1], &[1]],
            "",
        ),
        (
            "a disk that is lost and one that fails: none to spare",
            vec![(1, vec![OUT, BURST, GOOD]), (50, vec![OUT, DEAD, GOOD])],
            0,
            [&[], &[1], &[1]],
            "cannot be read without it",
        ),
        (
            "and works again",
            vec![
                (1, vec![OUT, BURST, GOOD]),
                (50, vec![OUT, DEAD, GOOD]),
                (RECENT_LOOKS as u32 + 1, vec![OUT, PROBED, GOOD]),
            ],
            0,
            [&[], &[], &[]],
            "",
        ),
        (
            "a burst on all that passes at once",
            vec![(1, vec![BURST; 6]), (100, vec![PROBED; 6])],
            2,
            [&[], &[], &[]],
            "",
        ),
        (
            "a burst on three of six, on one disk after the other",
            vec![
                (1, vec![BURST, GOOD, GOOD, GOOD, GOOD, GOOD]),
                (1, vec![DEAD, BURST, GOOD, GOOD, GOOD, GOOD]),
                (20, vec![DEAD, DEAD, BURST, GOOD, GOOD, GOOD]),
                (100, vec![PROBED, PROBED, PROBED, GOOD, GOOD, GOOD]),
            ],
            2,
            [&[], &[], &[]],
            "",
        ),
        (
            "a controller with three disks is gone for good: more than can be lost",
            vec![
                (1, vec![BURST, BURST, BURST, GOOD, GOOD, GOOD]),
                (1000, vec![DEAD, DEAD, DEAD, GOOD, GOOD, GOOD]),
            ],
            2,
            [&[], &[0, 1, 2], &[0, 1, 2]],
            "controller",
        ),
        (
            "two fail for good: they are put out late",
            vec![
                (1, vec![BURST, BURST, GOOD, GOOD, GOOD]),
                (SHARED_LOOKS, vec![DEAD, DEAD, GOOD, GOOD, GOOD]),
            ],
            2,
            [&[0, 1], &[], &[]],
            "do not stop",
        ),
        (
            "until then they are not",
            vec![
                (1, vec![BURST, BURST, GOOD, GOOD, GOOD]),
                (SHARED_LOOKS - 1, vec![DEAD, DEAD, GOOD, GOOD, GOOD]),
            ],
            2,
            [&[], &[0, 1], &[0, 1]],
            "",
        ),
        (
            "one of them is well again, the other one is not",
            vec![
                (1, vec![BURST, BURST, GOOD, GOOD]),
                (
                    2 * RECENT_LOOKS as u32 + settle,
                    vec![DEAD, PROBED, GOOD, GOOD],
                ),
            ],
            2,
            [&[0], &[], &[]],
            "one after the other",
        ),
        (
            "a single error of another disk is no excuse",
            vec![
                (1, vec![BURST, ONE_ERROR, GOOD]),
                (settle - 1, vec![DEAD, GOOD, GOOD]),
            ],
            2,
            [&[0], &[], &[]],
            "",
        ),
        (
            "errors of a burst do not count later",
            vec![
                (1, vec![BURST, BURST, GOOD]),
                (20, vec![PROBED, PROBED, GOOD]),
                (5, vec![ONE_ERROR, GOOD, GOOD]),
            ],
            2,
            [&[], &[], &[]],
            "",
        ),
        (
            "the last disk",
            vec![(1, vec![OUT, BURST]), (100, vec![OUT, DEAD])],
            1,
            [&[], &[1], &[1]],
            "",
        ),
    ];
    for (name, rows, spare, [out, suspect, spared], word) in cases {
        let (got, told) = fate(&rows, spare);
        let want = Fate {
            out: out.to_vec(),
            given_up: Vec::new(),
            suspect: suspect.to_vec(),
            spared: spared.to_vec(),
        };
        assert_eq!(got, want, "{name}: {told}");
        assert!(told.contains(word), "{name}: {told}");
    }
}
