//! The JSON of address pools, and what the API asks of a node for them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;

/// A pool to make: addresses of one network, which the nodes share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressPoolCreate {
    #[schema(
        example = "lan",
        min_length = 1,
        max_length = 63,
        pattern = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
    )]
    pub name: String,
    /// Each with the length of its prefix, which is the same for all: `10.0.0.20/24`; or from the first to the last:
    /// `10.0.0.20-10.0.0.25/24`.
    #[schema(example = json!(["10.0.0.20-10.0.0.25/24"]), min_items = 1, max_items = 256, max_length = 128)]
    pub addresses: Vec<String>,
    /// The interface that they are put on, of this name on each node; left out: that in their network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 15)]
    pub interface: Option<String>,
    /// The name by which the DNS responders of the nodes tell of the addresses that nodes have now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "files.example.com", min_length = 1, max_length = 253)]
    pub dns_name: Option<String>,
}

/// Addresses that come to a pool, and such that go. Written as in a new pool; those that go also without a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddressPoolChange {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256, max_length = 128)]
    pub add: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 256, max_length = 128)]
    pub remove: Vec<String>,
}

/// A pool of addresses, as the node that answers sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressPoolView {
    #[schema(example = "lan")]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_name: Option<String>,
    pub addresses: Vec<PoolAddressView>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolAddressView {
    /// With the length of its prefix.
    #[schema(example = "10.0.0.20/24")]
    pub address: String,
    /// The node that has it while that node lives and stays; left out while all nodes are to leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// The node that has it now; left out: none has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Why a node that should have it has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressPoolList {
    pub pools: Vec<AddressPoolView>,
}

/// What a node does with address pools.
pub trait AddressPoolControl: Send + Sync {
    fn address_pools(&self) -> Answer<'_, Vec<AddressPoolView>>;
    fn address_pool(&self, name: String) -> Answer<'_, AddressPoolView>;
    fn address_pool_create(&self, create: AddressPoolCreate) -> Answer<'_, AddressPoolView>;
    fn address_pool_change(
        &self,
        name: String,
        change: AddressPoolChange,
    ) -> Answer<'_, AddressPoolView>;
    fn address_pool_delete(&self, name: String) -> Answer<'_, ()>;
}
