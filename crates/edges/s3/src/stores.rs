//! The volumes whose objects are served here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cairn_activity::{Activities, Activity};
use cairn_base::VolumeId;
use cairn_base::env::{Clock, Entropy, Env};
use cairn_fs::Fs;
use cairn_objects::{AccessKey, Barred, Bucket, Objects};
use cairn_qos::{Gate, Shaper};
use parking_lot::RwLock;
use tokio::sync::watch;

/// After a failure, a volume's stored settings of objects are read again after so long.
const READ_AGAIN: Duration = Duration::from_secs(5);

/// A served volume, and its objects once they were read.
#[derive(Clone)]
pub struct Store {
    fs: Fs,
    objects: Option<Arc<Objects>>,
}

/// All served volumes.
pub struct Stores {
    env: Env,
    shaper: Arc<Shaper>,
    activities: Arc<Activities>,
    volumes: RwLock<HashMap<VolumeId, Store>>,
    /// Revoked keys that are still in their volumes, which may be reopened meanwhile.
    barred: Arc<Barred>,
    /// Whether there is a bucket or a key: the server may have to begin.
    pub is_used: watch::Sender<bool>,
}

fn is_same(left: &Fs, right: &Fs) -> bool {
    left.volume() == right.volume() && left.write_verifier() == right.write_verifier()
}

impl Stores {
    pub fn new(env: Env, shaper: Arc<Shaper>, activities: Arc<Activities>) -> Arc<Self> {
        Arc::new(Self {
            env,
            shaper,
            activities,
            volumes: RwLock::default(),
            barred: Arc::default(),
            is_used: watch::Sender::new(false),
        })
    }

    /// Sets the volumes that are served here from now on.
    pub fn replace(self: &Arc<Self>, served: Vec<Fs>) {
        let mut volumes = self.volumes.write();
        let mut before = std::mem::take(&mut *volumes);
        for fs in served {
            let known = before.remove(&fs.volume());
            // A reopened volume is another one.
            let store = known.filter(|known| is_same(&known.fs, &fs));
            if store.is_none() {
                let (stores, fs) = (Arc::clone(self), fs.clone());
                let read = async move { stores.read(fs).await };
                self.env.spawner.spawn("objects", Box::pin(read));
            }
            let store = store.unwrap_or(Store { fs, objects: None });
            volumes.insert(store.fs.volume(), store);
        }
    }

    /// Reads the stored settings of a volume, as long as it is served.
    async fn read(self: Arc<Self>, fs: Fs) {
        loop {
            let is_current = {
                let volumes = self.volumes.read();
                let now = volumes.get(&fs.volume());
                now.is_some_and(|now| now.objects.is_none() && is_same(&now.fs, &fs))
            };
            if !is_current {
                return;
            }
            let barred = Arc::clone(&self.barred);
            match Objects::open(fs.clone(), self.env.clone(), barred).await {
                Ok(objects) => {
                    let is_used = objects.is_used();
                    if let Some(store) = self.volumes.write().get_mut(&fs.volume())
                        && is_same(&store.fs, &fs)
                    {
                        store.objects = Some(objects);
                    }
                    if is_used {
                        self.is_used.send_replace(true);
                    }
                    return;
                }
                Err(error) => {
                    let volume = fs.name();
                    tracing::error!(volume, %error, "the objects of a volume are not served: what it keeps of them is not read");
                    self.env.clock.sleep(READ_AGAIN).await;
                }
            }
        }
    }

    /// The gate that transfers of a volume pass.
    pub fn gate(&self, volume: VolumeId) -> Arc<Gate> {
        self.shaper.gate(volume)
    }

    /// The counters of clients' activity on a volume.
    pub fn activity(&self, volume: VolumeId) -> Arc<Activity> {
        self.activities.of(volume)
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        &self.env.clock
    }

    pub(crate) fn entropy(&self) -> &dyn Entropy {
        &*self.env.entropy
    }

    /// `None`: the volume is not served here, or not yet.
    pub fn of_volume(&self, volume: VolumeId) -> Option<Arc<Objects>> {
        self.volumes.read().get(&volume)?.objects.clone()
    }

    /// The usable ones, in the order of their volumes' names.
    pub fn all(&self) -> Vec<Arc<Objects>> {
        let volumes = self.volumes.read();
        let stores = volumes.values();
        let mut all: Vec<_> = stores.filter_map(|store| store.objects.clone()).collect();
        all.sort_by(|left, right| left.fs().name().cmp(right.fs().name()));
        all
    }

    /// Whether all served volumes were read.
    pub fn is_whole(&self) -> bool {
        self.volumes
            .read()
            .values()
            .all(|store| store.objects.is_some())
    }

    /// A bucket, in any volume.
    pub fn bucket(&self, name: &str) -> Option<Bucket> {
        let volumes = self.volumes.read();
        let mut stores = volumes.values();
        stores.find_map(|store| store.objects.as_ref()?.bucket(name).ok())
    }

    /// An access key, and its volume.
    pub fn access_key(&self, id: &str) -> Option<(Arc<Objects>, AccessKey)> {
        let volumes = self.volumes.read();
        volumes.values().find_map(|store| {
            let objects = store.objects.as_ref()?;
            Some((Arc::clone(objects), objects.access_key(id)?))
        })
    }
}
