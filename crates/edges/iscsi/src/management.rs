//! Task management: what ends commands before their time.
//!
//! Owns: which commands a function means. Must not know: how commands end (`unit`).

use cairn_codec_iscsi::{TaskFunction, TaskResponse};
use cairn_codec_scsi::{code, lun_of_bytes};

use crate::session::SessionTask;
use crate::tasks::{Done, Incoming, Running, Start};

impl SessionTask {
    pub fn task(
        &mut self,
        lane: u64,
        function: TaskFunction,
        lun: [u8; 8],
        tag: u32,
        referenced: u32,
    ) {
        let Some(view) = &mut self.view else { return };
        let nexus = self.nexus.clone();
        let place = view.place();
        let number = lun_of_bytes(&lun);
        let unit = number.and_then(|number| place.units.get(&number)).cloned();
        let done = move |response| Done::Task {
            lane,
            tag,
            response,
        };
        let at_once = move |response| -> Running { Box::pin(std::future::ready(done(response))) };
        let future: Running = match function {
            TaskFunction::AbortTask => {
                if self.incoming.contains_key(&referenced) {
                    self.forget_incoming(|one| one.asked.header.tag == referenced);
                    at_once(TaskResponse::Complete)
                } else if self
                    .waiting
                    .iter()
                    .any(|start| start.asked.header.tag == referenced)
                {
                    self.forget_waiting(|start| start.asked.header.tag == referenced);
                    at_once(TaskResponse::Complete)
                } else if self.parked.contains_key(&referenced) {
                    self.forget_waiting(|start| start.asked.header.tag == referenced);
                    at_once(TaskResponse::Complete)
                } else {
                    match self.active.remove(&referenced) {
                        Some(active) => Box::pin(async move {
                            active.task.abort().await;
                            done(TaskResponse::Complete)
                        }),
                        None => at_once(TaskResponse::NoTask),
                    }
                }
            }
            TaskFunction::AbortTaskSet
            | TaskFunction::ClearTaskSet
            | TaskFunction::LogicalUnitReset => {
                let Some(unit) = unit else {
                    self.run_for(lane, at_once(TaskResponse::NoLun));
                    return;
                };
                self.forget_incoming(|one| one.asked.header.lun == lun);
                self.forget_waiting(|start| start.asked.header.lun == lun);
                Box::pin(async move {
                    match function {
                        TaskFunction::AbortTaskSet => {
                            unit.abort(|other| *other == nexus, None).await
                        }
                        TaskFunction::ClearTaskSet => {
                            unit.abort(|_| true, None).await;
                            unit.attention_of_all(Some(&nexus), code::COMMANDS_CLEARED);
                        }
                        _ => unit.reset(code::POWER_ON).await,
                    }
                    done(TaskResponse::Complete)
                })
            }
            TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset => {
                self.forget_incoming(|_| true);
                self.forget_waiting(|_| true);
                Box::pin(async move {
                    for unit in place.units.values() {
                        unit.reset(code::POWER_ON).await;
                    }
                    done(TaskResponse::Complete)
                })
            }
            TaskFunction::TaskReassign => at_once(TaskResponse::ReassignNotSupported),
            TaskFunction::ClearAca | TaskFunction::Unknown => at_once(TaskResponse::NotSupported),
        };
        self.run_for(lane, future);
    }

    fn forget_incoming(&mut self, which: impl Fn(&Incoming) -> bool) {
        let open = &mut self.open_count;
        self.incoming.retain(|_, one| {
            let goes = which(one);
            if goes && !one.asked.is_immediate {
                *open -= 1;
            }
            !goes
        });
    }

    fn forget_waiting(&mut self, which: impl Fn(&Start) -> bool) {
        let open = &mut self.open_count;
        let mut stays = |start: &Start| {
            let goes = which(start);
            if goes && !start.asked.is_immediate {
                *open -= 1;
            }
            !goes
        };
        self.waiting.retain(|start| stays(start));
        self.parked.retain(|_, (_, start)| stays(start));
    }

    /// Ends what a connection began: nobody is there to answer.
    pub fn forget_lane(&mut self, lane: u64) {
        self.forget_incoming(|one| one.asked.lane == lane);
        self.forget_waiting(|start| start.asked.lane == lane);
        for active in self.active.values().filter(|active| active.lane == lane) {
            active.task.cancel();
        }
    }
}
