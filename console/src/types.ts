// Names for the schemas of the OpenAPI document, which the types are generated from.
import type { components } from "./api.gen";

type Schemas = components["schemas"];

export type AccessKey = Schemas["AccessKeyView"];
export type AuditEntry = Schemas["AuditEntry"];
export type AuditPage = Schemas["AuditPage"];
export type Bucket = Schemas["BucketView"];
export type Disk = Schemas["DiskView"];
export type ErrorBody = Schemas["ErrorBody"];
export type Export = Schemas["ExportView"];
export type ExportRule = Schemas["ExportRule"];
export type Health = Schemas["Health"];
export type HistoryView = Schemas["HistoryView"];
export type HistoryList = Schemas["HistoryList"];
export type Igroup = Schemas["IgroupView"];
export type Live = Schemas["LiveView"];
export type Lun = Schemas["LunView"];
export type Mount = Schemas["MountView"];
export type Rebuild = Schemas["RebuildView"];
export type Schedules = Schemas["SchedulesView"];
export type Scrub = Schemas["ScrubView"];
export type ScrubReport = Schemas["ScrubReport"];
export type Session = Schemas["SessionView"];
export type SessionOpen = Schemas["SessionOpen"];
export type Snapshot = Schemas["SnapshotView"];
export type SnapshotList = Schemas["SnapshotList"];
export type Status = Schemas["Status"];
export type User = Schemas["UserView"];
export type Volume = Schemas["VolumeView"];
