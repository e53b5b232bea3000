//! Which errors are permitted. The tables themselves come from the RFCs; here is what must hold of them.

use super::*;

#[test]
fn every_operation_has_one_row() {
    let rows = ERRORS_41.iter().chain(ERRORS_42).chain(ERRORS_XATTR);
    let mut ops: Vec<Op> = rows.clone().map(|(op, _)| *op).collect();
    ops.sort();
    assert_eq!(ops, Op::ALL);
    for (op, errors) in rows {
        assert!(errors.is_sorted() && !errors.is_empty(), "{op:?}");
        let unique: BTreeSet<_> = errors.iter().collect();
        assert_eq!(unique.len(), errors.len(), "{op:?}");
    }
    let rows = CALLBACK_ERRORS_41.iter().chain(CALLBACK_ERRORS_42);
    let mut ops: Vec<CbOp> = rows.clone().map(|(op, _)| *op).collect();
    ops.sort();
    assert_eq!(ops, CbOp::ALL);
    for (op, errors) in rows {
        assert!(errors.is_sorted() && !errors.is_empty(), "{op:?}");
    }
}

/// Rows of RFC 8881, section 15.4: the operations that use an error.
#[test]
fn operations_of_an_error_are_those_of_the_rfc() {
    let cases: &[(ErrorStatus, &[Op])] = &[
        (ErrorStatus::XDev, &[Op::Link, Op::Rename]),
        (ErrorStatus::Denied, &[Op::Lock, Op::LockT]),
        (ErrorStatus::BackChanBusy, &[Op::DestroySession]),
        (ErrorStatus::Same, &[Op::NVerify]),
        (
            ErrorStatus::NotSame,
            &[Op::ReadDir, Op::Verify, Op::ExchangeId, Op::GetDeviceList],
        ),
        (ErrorStatus::LocksHeld, &[Op::Close, Op::FreeStateId]),
        (
            ErrorStatus::NotOnlyOp,
            &[
                Op::BindConnToSession,
                Op::ExchangeId,
                Op::CreateSession,
                Op::DestroySession,
                Op::DestroyClientId,
            ],
        ),
        (ErrorStatus::CompleteAlready, &[Op::ReclaimComplete]),
        (ErrorStatus::RestoreFh, &[]),
        (ErrorStatus::Resource, &[]),
    ];
    for (error, want) in cases {
        let rows = ERRORS_41
            .iter()
            .filter(|(_, errors)| errors.contains(error));
        let mut ops: Vec<Op> = rows.map(|(op, _)| *op).collect();
        ops.sort();
        assert_eq!(ops, *want, "{error:?}");
    }
}

#[test]
fn errors_are_permitted_or_not() {
    use ErrorStatus::*;
    let cases = [
        (Op::Sequence, 1, BadSession, true),
        (Op::Sequence, 1, NoEnt, false),
        (Op::GetAttr, 1, NoEnt, false),
        (Op::Lookup, 1, NoEnt, true),
        (Op::Read, 1, NotSupp, false),
        // Not in the table, but optional.
        (Op::Copy, 2, NotSupp, true),
        (Op::SetXattr, 2, NotSupp, true),
        (Op::Copy, 2, OffloadNoReqs, true),
        (Op::ListXattrs, 2, TooSmall, true),
        (Op::Clone, 2, XDev, true),
        (Op::GetDeviceList, 1, BadCookie, true),
        (Op::GetDeviceList, 2, BadCookie, false),
        (Op::GetDeviceList, 2, NotSupp, true),
        (Op::SetClientId, 1, NotSupp, true),
        (Op::SetClientId, 1, ClIdInUse, false),
        (Op::Illegal, 2, OpIllegal, true),
        (Op::Illegal, 2, NotSupp, false),
        (Op::Open, 1, StaleClientId, false),
    ];
    for (op, minor_version, error, want) in cases {
        let got = permits(op, minor_version, error);
        assert_eq!(got, want, "{op:?} in 4.{minor_version}: {error:?}");
    }
    assert!(callback_permits(CbOp::NotifyLock, NotSupp));
    assert!(!callback_permits(CbOp::Recall, NotSupp));
    assert!(callback_permits(CbOp::Offload, BadStateId));
    // The list of errors beside the tables repeats no row.
    for (op, error, section) in ERRORS_OF_TEXT {
        assert!(!table_errors(*op, 2).contains(error), "{op:?}: {section}");
    }
}

#[test]
fn an_operation_that_cannot_be_read_is_answered_with_a_permitted_error() {
    for (op, minor_version) in Op::ALL.iter().flat_map(|op| [(*op, 1), (*op, 2)]) {
        let bytes = op.number().to_be_bytes();
        let mut ops = Ops::<OpArgs<'_>>::new(minor_version, 1, Reader::new(&bytes));
        if let Some(Err(fault)) = ops.next() {
            let answer = fault.result(minor_version);
            let status = answer.status().unwrap_err();
            let permitted = permits(answer.op(), minor_version, status);
            assert!(permitted, "{op:?} in 4.{minor_version}: {status:?}");
        }
    }
}

#[test]
fn versions_have_their_operations() {
    let count = |minor| {
        (0..200)
            .filter(|op| Op::of_version(minor, *op).is_some())
            .count()
    };
    // RFC 7530 has 37, RFC 8881 19 more, RFC 7862 13 and RFC 8276 4.
    assert_eq!([count(0), count(1), count(2)], [37, 56, 73]);
    assert_eq!(Op::of_version(1, 10_044), Some(Op::Illegal));
    let required = |op: &&Op| op.need(2) == Need::Required;
    // RFC 7862, section 13, table 5: REQ.
    assert_eq!(Op::ALL.iter().filter(required).count(), 39);
    assert_eq!(ErrorStatus::ALL.len(), 112);
    assert_eq!(ErrorStatus::from_u32(10_073), None);
}
