//! Connections to the disks of another node, for `cairn-remote`.

use std::io;
use std::sync::Arc;

use cairn_base::NodeId;
use cairn_base::env::BoxFuture;
use cairn_remote::{Connection, Dial};

use crate::protocol::Protocol;
use crate::trust::Trust;

pub struct TrustDial {
    pub trust: Arc<Trust>,
    /// `HOST:PORT`.
    pub address: String,
    pub node: NodeId,
}

impl Dial for TrustDial {
    fn dial(&self) -> BoxFuture<io::Result<Connection>> {
        let (trust, address, node) = (Arc::clone(&self.trust), self.address.clone(), self.node);
        Box::pin(async move {
            let stream = trust.connect(&address, node, Protocol::Shards).await?;
            Ok(Connection::new(stream))
        })
    }
}
