//! Bugs planted on purpose, to prove that the simulator finds them.
//!
//! Owns: their names and which one is planted. Must not know: what finds them. Without the feature `planted-bugs` [`is`] is a constant
//! `false`: the program has none of them. With it, each still does nothing until [`plant`] is called,
//! and then only on the thread that called it.

/// A mistake that somebody could make. The place in the code where it is made asks [`is`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bug {
    // meta
    LogWithoutSync,
    LogFolderWithoutSync,
    AnswerBeforeLog,
    SwapCommits,
    LogChecksumIgnored,
    LogCutTooEarly,
    LogLastRecordNotReplayed,
    LogGapOfOneAccepted,
    StateRenamedBeforeSync,
    JournalNotReplayed,
    JournalFoldIgnored,
    CarriedJournalFoldedFirst,
    InoUsedAgain,
    SegmentIdUsedAgain,
    SpaceCountedTwice,
    SegmentDeltaLost,
    // meta, snapshots
    HistoryNotKept,
    HistoryNotCounted,
    DeadEntryLost,
    /// One in some thousand seeds finds it: the tests of `meta` have one of its own.
    GroupGoesOnAfterMove,
    // fs, snapshots
    MoveMakesHistory,
    BirthNotSettled,
    SnapshotMissesJournal,
    HistoryNotMoved,
    DiffMissesNewNames,
    RestoreKeepsNewFiles,
    RestoreCountsNothing,
    // shard
    ShardWithoutSync,
    ShardNameWithoutSync,
    SyncErrorIgnored,
    RecycledNameHalfSynced,
    // shard: fences; found by `crates/engine/shard/tests`, since the simulator has one owner at a time
    EpochIgnoredInRemove,
    EpochIgnoredInRepair,
    PromiseNotSynced,
    // shard: space; found by its tests
    SpaceClaimedTogether,
    // failure domains; found by the tests of `crates/base` and `crates/engine/segment`, since the disks of the simulator
    // are on one node
    NodeCountedTwice,
    // cluster; found by the tests of `crates/engine/cluster`, since the simulator has no cluster yet
    LogChangeComparesEpochOnly,
    OwnerGoesOnAfterLease,
    LeaseCountedFromReply,
    EpochKeptAtOwnTakeover,
    EpochNotComparedInLogChange,
    UnknownTakenAsDone,
    UnknownTakenAsRefused,
    OldBackupAccepted,
    TokenWorksTwice,
    // cluster; found by the simulation of a cluster
    EpochIgnoredInAppend,
    EpochIgnoredInCreate,
    EpochIgnoredInSweep,
    PromiseDoesNotWait,
    TakeoverDoesNotFence,
    TakeoverWithoutAnyMember,
    TakeoverCopiesNothing,
    ServedBeforeTakeoverIsAgreed,
    AnsweredBeforeSealIsAgreed,
    SealedBehindWhatAllHave,
    LateDiskCountsAsWritten,
    LogCopiesOnOneNode,
    LogFileNumberUsedAgain,
    LogFileUseIsItsNumber,
    SealedCopyOfOldUse,
    LogCutBehindTheCopies,
    LogCutBehindTheOwnState,
    OldStateTaken,
    StateCopiedToOwnNode,
    DisksOfDataNotFenced,
    LogOfBeforeTheTakeover,
    NoReplyTakenAsDone,
    GivenUpBeforeItIsClosed,
    ListedWhileOpeningNotFollowed,
    LeaseLastsOverSuspension,
    PromiseWaitsForAnyVolume,
    SweepTakesOtherVolume,
    TrailerOfOtherVolumeTaken,
    // segment
    RecordChecksumIgnored,
    ReadCacheChecksumIgnored,
    ParityNotComputed,
    StripesOverlap,
    AppendAnsweredOnError,
    RepairAtWrongPlace,
    // fs
    StableWriteNotAwaited,
    CommitSkipsFlights,
    CommitForgetsNewFlights,
    JournalSizeIgnored,
    CutForgetsDirty,
    CutForgetsJournal,
    SizeBeforeData,
    LinkCountNotStored,
    RemovalForgetsCookie,
    OrphanForgotten,
    VerifierKept,
    FailedFlushDropped,
    RenameInTwoSteps,
    // fs, what LUNs do to their files
    HoleForgetsDirty,
    HoleForgetsJournal,
    HoleNotAwaited,
    CompareNotRepeated,
    CompareBeginOnly,
    // fs, what puts of objects do
    PutNamedBeforeItsBytes,
    PutConditionLookedAtEarly,
    // quotas; found by the tests of `crates/services/fs`
    UsageCountedAgainAtReplay,
    ChownNotCharged,
    CutNotGivenBack,
    RenameNotCharged,
    CountingMissesCreates,
    // contents that are kept before changes; found by the tests of `crates/services/fs`
    KeptWithoutItsBytes,
    KeptWithoutBeginning,
    // garbage collection, in fs
    CollectorIgnoresPins,
    RewriteIgnoresOverwrites,
    // small extents that are joined; found by the tests of `crates/services/fs`
    JoinIgnoresOverwrites,
    JoinedFromItsBegin,
    // conversions of data, in fs
    ConversionIgnoresOverwrites,
    CutApartBornNow,
    // bytes in extents
    InlineCutAtItsBegin,
    InlineHistoryForgotten,
    // deduplication, in fs
    DedupeTakesDead,
    DedupeTakesOther,
    DedupeHashPrefix,
    // segments in object stores
    TierCopyNotCompared,
    TierObjectNotNoted,
    TierDeadObjectNotNoted,
    TierLateObjectForgotten,
    TierBackWithoutSnapshots,
    // moves, rebuilds and scrubs of shards
    MovedShardDeletedEarly,
    MovedShardNotSynced,
    MovedShardWithoutFooter,
    RebuildTakesNeighbour,
    RebuildTakesZeros,
    RewritingDeletesEarly,
    SummaryEntryLost,
    ScrubRepairsFromDamage,
    // the pool's decisions
    DiskForgottenWhileNeeded,
    DiskForgottenWithMetadata,
    DrainingDiskTakesData,
    JournalDiskTakesData,
    MediaBeforeProtection,
    OldPoolFileWins,
    PoolFileWithoutSync,
    ReturnedDiskStillNotedEmpty,
    DiskUsedBeforeItIsMember,
    LostDiskNotedEmptyEarly,
    AwayDiskCountsAsThere,
    // forward
    ForwardTermIgnored,
    ForwardNotCaughtUp,
    ForwardNotSettled,
    ForwardEndedCallsBegin,
    /// In both places that look: before a call begins, and what ends its connection. Each stands in front of the other.
    ForwardStandstillIgnored,
    ForwardLateCall,
    ForwardOldBytesTaken,
    /// A connection outlives its term, and a stream for it is opened under the one that the node has then.
    ForwardTermOfNow,
    ForwardStreamBringsNoNews,
    /// A newer map is taken in only when what an older one ended is finished.
    NewsWaitForOlderOnes,
    ForwardClientNotAwaited,
    ForwardOwnTermNotShown,
    ForwardSilentNodeKeepsStreams,
    BeatTellsServingOnce,
    BeatOfOtherProcessTaken,
    EchoCountsWhenItCame,
    SuspensionIsNoStandstill,
    WaitingConnectionTaken,
    /// Those that the runtime has not heard of count as new when it does.
    WaitingConnectionHeardLate,
    // owners: taking, giving up, yielding
    OwnerProcessNotCompared,
    GivenUpForWhoeverOwnsIt,
    BlindNodesDoNotCount,
    AgreedRangeEndsOneEarlier,
    // addresses of pools; found by the tests of `crates/services/owner`, since the simulator has none
    AddressTakenFromOther,
    AddressLeftBeforeItIsDropped,
    AddressKeptOverLease,
    NewNodeGetsAddresses,
    UnfitNodeGetsAddress,
    // the log of a volume in a cluster
    LogFileRemovedBeforeItIsAgreed,
    WidenedOnOneNode,
    WidenedBeforeItIsCopied,
    KeptPartNotSynced,
    KeptWithTooFewCopies,
    LogTakesTheLastRoom,
    StateCopyTakesTheLastRoom,
    // replies that are kept, changes of objects that come late; found by the tests of `rpc-server` and `objects`
    HeldReplyKept,
    LateObjectChangeDone,
    // the disk that a volume's state is on
    StateMovedBeforeItIsCopied,
    StateGoesToFullDisk,
}

/// Whether bugs can be planted in this build: true for tests and the simulator, false for the product. Assertions that
/// walk over a whole change run only where this is true.
pub const CAN_BE_PLANTED: bool = cfg!(feature = "planted-bugs");

/// Whether this bug is planted here.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub use switched::{is, is_noticed_by, plant};

#[cfg(feature = "planted-bugs")]
mod switched {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Whether this bug is planted on this thread.
    pub fn is(bug: Bug) -> bool {
        PLANTED.get() == Some(bug)
    }

    /// Plants a bug on this thread in place of another one; `None` plants none.
    pub fn plant(bug: Option<Bug>) {
        PLANTED.set(bug);
    }

    /// Whether a test that passes otherwise fails on this thread with a bug planted.
    pub fn is_noticed_by(bug: Bug, test: fn()) -> bool {
        plant(Some(bug));
        let is_noticed = std::panic::catch_unwind(test).is_err();
        plant(None);
        is_noticed
    }
}
