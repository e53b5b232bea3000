//! Bugs planted on purpose, to prove that the simulator finds them.
//!
//! Owns: their names and which one is planted. Without the feature `planted-bugs` [`is`] is a constant
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
    // forward; the simulator has no clients that change nodes yet
    ForwardTermIgnored,
    ForwardNotCaughtUp,
    ForwardNotSettled,
    ForwardEndedCallsBegin,
    ForwardStandstillIgnored,
    ForwardLateCall,
    ForwardOldBytesTaken,
}

impl Bug {
    pub const ALL: &[Bug] = &[
        Bug::LogWithoutSync,
        Bug::LogFolderWithoutSync,
        Bug::AnswerBeforeLog,
        Bug::SwapCommits,
        Bug::LogChecksumIgnored,
        Bug::LogCutTooEarly,
        Bug::LogLastRecordNotReplayed,
        Bug::LogGapOfOneAccepted,
        Bug::StateRenamedBeforeSync,
        Bug::JournalNotReplayed,
        Bug::JournalFoldIgnored,
        Bug::CarriedJournalFoldedFirst,
        Bug::InoUsedAgain,
        Bug::SegmentIdUsedAgain,
        Bug::SpaceCountedTwice,
        Bug::SegmentDeltaLost,
        Bug::HistoryNotKept,
        Bug::HistoryNotCounted,
        Bug::DeadEntryLost,
        Bug::MoveMakesHistory,
        Bug::BirthNotSettled,
        Bug::SnapshotMissesJournal,
        Bug::HistoryNotMoved,
        Bug::DiffMissesNewNames,
        Bug::RestoreKeepsNewFiles,
        Bug::RestoreCountsNothing,
        Bug::ShardWithoutSync,
        Bug::ShardNameWithoutSync,
        Bug::SyncErrorIgnored,
        Bug::RecycledNameHalfSynced,
        Bug::RecordChecksumIgnored,
        Bug::ReadCacheChecksumIgnored,
        Bug::ParityNotComputed,
        Bug::StripesOverlap,
        Bug::AppendAnsweredOnError,
        Bug::RepairAtWrongPlace,
        Bug::StableWriteNotAwaited,
        Bug::CommitSkipsFlights,
        Bug::CommitForgetsNewFlights,
        Bug::JournalSizeIgnored,
        Bug::CutForgetsDirty,
        Bug::CutForgetsJournal,
        Bug::SizeBeforeData,
        Bug::LinkCountNotStored,
        Bug::RemovalForgetsCookie,
        Bug::OrphanForgotten,
        Bug::VerifierKept,
        Bug::FailedFlushDropped,
        Bug::RenameInTwoSteps,
        Bug::HoleForgetsDirty,
        Bug::HoleForgetsJournal,
        Bug::HoleNotAwaited,
        Bug::CompareNotRepeated,
        Bug::CompareBeginOnly,
        Bug::PutNamedBeforeItsBytes,
        Bug::PutConditionLookedAtEarly,
        Bug::CollectorIgnoresPins,
        Bug::RewriteIgnoresOverwrites,
        Bug::ConversionIgnoresOverwrites,
        Bug::CutApartBornNow,
        Bug::InlineCutAtItsBegin,
        Bug::InlineHistoryForgotten,
        Bug::DedupeTakesDead,
        Bug::DedupeTakesOther,
        Bug::DedupeHashPrefix,
        Bug::TierCopyNotCompared,
        Bug::TierObjectNotNoted,
        Bug::TierDeadObjectNotNoted,
        Bug::TierLateObjectForgotten,
        Bug::TierBackWithoutSnapshots,
        Bug::MovedShardDeletedEarly,
        Bug::MovedShardNotSynced,
        Bug::MovedShardWithoutFooter,
        Bug::RebuildTakesNeighbour,
        Bug::RebuildTakesZeros,
        Bug::RewritingDeletesEarly,
        Bug::SummaryEntryLost,
        Bug::ScrubRepairsFromDamage,
        Bug::DiskForgottenWhileNeeded,
        Bug::DiskForgottenWithMetadata,
        Bug::DrainingDiskTakesData,
        Bug::JournalDiskTakesData,
        Bug::MediaBeforeProtection,
        Bug::OldPoolFileWins,
        Bug::PoolFileWithoutSync,
        Bug::ReturnedDiskStillNotedEmpty,
        Bug::DiskUsedBeforeItIsMember,
        Bug::LostDiskNotedEmptyEarly,
        Bug::AwayDiskCountsAsThere,
    ];

    /// Those that the simulation of a cluster finds.
    pub const CLUSTER: &[Bug] = &[
        Bug::EpochIgnoredInRemove,
        Bug::EpochIgnoredInRepair,
        Bug::EpochIgnoredInAppend,
        Bug::EpochIgnoredInCreate,
        Bug::TakeoverWithoutAnyMember,
        Bug::TakeoverCopiesNothing,
        Bug::SealedBehindWhatAllHave,
        Bug::LateDiskCountsAsWritten,
        Bug::LogFileNumberUsedAgain,
        Bug::LogCutBehindTheCopies,
        Bug::OldStateTaken,
        Bug::StateCopiedToOwnNode,
        Bug::VerifierKept,
        Bug::LogCutTooEarly,
        Bug::OwnerGoesOnAfterLease,
        Bug::EpochKeptAtOwnTakeover,
        Bug::LogCopiesOnOneNode,
        Bug::GivenUpBeforeItIsClosed,
    ];

    /// Those that a search of a minute each did not find: something else stands in front of them, or they bite in orders that are seldom.
    /// The tests of the crates that they are in find the first ones of [`Bug`].
    pub const CLUSTER_NOT_FOUND: &[Bug] = &[
        Bug::LogChangeComparesEpochOnly,
        Bug::LeaseCountedFromReply,
        Bug::UnknownTakenAsDone,
        Bug::UnknownTakenAsRefused,
        Bug::EpochIgnoredInSweep,
        Bug::TakeoverDoesNotFence,
        Bug::ServedBeforeTakeoverIsAgreed,
        Bug::DisksOfDataNotFenced,
        Bug::LogOfBeforeTheTakeover,
        Bug::NoReplyTakenAsDone,
        Bug::SealedCopyOfOldUse,
        Bug::AnsweredBeforeSealIsAgreed,
        Bug::PromiseWaitsForAnyVolume,
        Bug::SweepTakesOtherVolume,
        Bug::TrailerOfOtherVolumeTaken,
        // Found before leases were renewed more often, and searched for 42 s each since.
        Bug::LogFileUseIsItsNumber,
        Bug::PromiseDoesNotWait,
        Bug::EpochNotComparedInLogChange,
        Bug::ListedWhileOpeningNotFollowed,
        Bug::NodeCountedTwice,
        Bug::PromiseNotSynced,
        Bug::LogCutBehindTheOwnState,
        Bug::LeaseLastsOverSuspension,
    ];
}

/// Whether this bug is planted here.
#[cfg(not(feature = "planted-bugs"))]
#[inline(always)]
pub const fn is(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub use switched::{is, plant};

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
}
