//! Reading the arguments of a COMPOUND takes no memory, however many items its arrays have.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use cairn_codec_nfs::Writer;
use cairn_codec_nfs::v4::{
    Ace, Attr, AttrValue, Bitmap, CallbackSecurity, ChannelAttrs, ClientId, Compound, CopyArgs,
    CopyRequirements, CreateSessionArgs, FattrBuf, Items, NetLoc, OpArgs, SetAttrArgs, SetIn,
    StateId, encode_compound,
};

thread_local! {
    static ALLOCATION_COUNT: Cell<usize> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note() {
    // A thread that ends has no count any more, and reads nothing any more.
    let _ = ALLOCATION_COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        // SAFETY: the caller keeps the rules of `alloc`, which are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from `System` with this layout, as all do.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Operations whose arguments have arrays, some of many items.
fn call() -> Vec<u8> {
    let ids = vec![StateId::CURRENT; 4096];
    let ace = Ace {
        ace_type: 0,
        flags: 0,
        access_mask: 1,
        who: "EVERYONE@".into(),
    };
    let aces = vec![ace; 1000];
    let attributes = FattrBuf::new(&[AttrValue::Acl(Items::new(&aces)), AttrValue::Mode(0o644)]);
    let security = vec![CallbackSecurity::None; 1000];
    let servers = vec![NetLoc::Name("server".into()); 1000];
    let ops = [
        OpArgs::TestStateId(Items::new(&ids)),
        OpArgs::SetAttr(SetAttrArgs {
            state_id: StateId::ANONYMOUS,
            attributes: attributes.as_fattr(),
        }),
        OpArgs::CreateSession(CreateSessionArgs {
            client_id: ClientId(1),
            sequence_id: 1,
            flags: 0,
            fore_channel: ChannelAttrs::default(),
            back_channel: ChannelAttrs::default(),
            callback_program: 0,
            security: Items::new(&security),
        }),
        OpArgs::Copy(CopyArgs {
            from_state_id: StateId::CURRENT,
            to_state_id: StateId::CURRENT,
            from_offset: 0,
            to_offset: 0,
            len_bytes: 0,
            requirements: CopyRequirements::default(),
            source_servers: Items::new(&servers),
        }),
    ];
    let mut bytes = Vec::new();
    encode_compound(&mut Writer::new(&mut bytes), b"tag", 2, &ops);
    bytes
}

/// How many operations, array items and attributes there are.
fn read(bytes: &[u8], supported: &Bitmap) -> [usize; 3] {
    let mut counts = [0; 3];
    for op in Compound::decode(bytes).expect("the head is good").ops() {
        counts[0] += 1;
        counts[1] += match op.expect("the operations are good") {
            OpArgs::TestStateId(ids) => ids.iter().count(),
            OpArgs::CreateSession(args) => args.security.iter().count(),
            OpArgs::Copy(args) => args.source_servers.iter().count(),
            OpArgs::SetAttr(args) => {
                let values = args.attributes.to_set(supported, SetIn::SetAttr);
                let values = values.expect("the attributes are good");
                values
                    .map(|value| {
                        counts[2] += 1;
                        match value {
                            AttrValue::Acl(aces) => aces.iter().count(),
                            _ => 0,
                        }
                    })
                    .sum()
            }
            _ => 0,
        };
    }
    counts
}

#[test]
fn reading_arguments_allocates_nothing() {
    let bytes = call();
    let before = ALLOCATION_COUNT.get();
    let counts = read(&bytes, &Attr::SETTABLE);
    let allocated = ALLOCATION_COUNT.get() - before;
    assert_eq!(counts, [4, 4096 + 3000, 2]);
    assert_eq!(allocated, 0);
    assert!(before > 0, "the count counts");
}
