//! Address pools: JSON, routes, and what they ask of a node.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::control::Answer;
use crate::endpoint::{
    Endpoint, absent, create, delete, endpoints, get, patch, plain_name, texts_in_path,
};
use crate::server::Table;

/// An address pool to create: addresses of one network, which the nodes share.
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
    /// Addresses with a common prefix length, `10.0.0.20/24`, or ranges, `10.0.0.20-10.0.0.25/24`.
    #[schema(example = json!(["10.0.0.20-10.0.0.25/24"]), min_items = 1, max_items = 256, max_length = 128)]
    pub addresses: Vec<String>,
    /// The network interface, which has this name on each node; left out: the one in the addresses' network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 15)]
    pub interface: Option<String>,
    /// DNS name that the nodes' DNS responders resolve to the addresses that nodes hold now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "files.example.com", min_length = 1, max_length = 253)]
    pub dns_name: Option<String>,
}

/// Addresses to add to and remove from an address pool, written as in a new pool; removed ones also without a prefix length.
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

/// An address pool, as the answering node sees it.
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
    /// Address with prefix length.
    #[schema(example = "10.0.0.20/24")]
    pub address: String,
    /// The home: the node that holds the address while that node is up; left out while all nodes are being drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
    /// The node that holds the address now; left out: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Why the node that should hold the address does not.
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

endpoints! {
    /// Lists address pools: each address with its home and its holder.
    ADDRESS_POOL_LIST: Endpoint<(), (), AddressPoolList> = get("/api/v1/cluster/address-pools").list("pools", &["name"]);

    /// Creates an address pool. The nodes take its addresses within a second.
    ADDRESS_POOL_CREATE: Endpoint<(), AddressPoolCreate, AddressPoolView> = create("/api/v1/cluster/address-pools");

    /// Shows one address pool.
    ADDRESS_POOL_SHOW: Endpoint<AddressPoolName, (), AddressPoolView> = get("/api/v1/cluster/address-pools/{pool}");

    /// Adds and removes addresses of an address pool. The holder of a removed address drops it, which disconnects its clients.
    ADDRESS_POOL_CHANGE: Endpoint<AddressPoolName, AddressPoolChange, AddressPoolView> = patch("/api/v1/cluster/address-pools/{pool}");

    /// Deletes an address pool; its nodes drop the addresses.
    ADDRESS_POOL_DELETE: Endpoint<AddressPoolName, (), ()> = delete("/api/v1/cluster/address-pools/{pool}");

}

texts_in_path! {
    /// An address pool, by its name.
    AddressPoolName, plain_name(), "no address pool has the name in the path";
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn AddressPoolControl>(|node| node.address_pools().ok_or_else(|| absent("this server is not in a cluster, so it has no nodes that could share addresses")))

        .on(ADDRESS_POOL_LIST, |node, (), ()| {
            Box::pin(async move { Ok(AddressPoolList { pools: node.address_pools().await? }) })
        })
        .on(ADDRESS_POOL_CREATE, |node, (), create| node.address_pool_create(create))
        .on(ADDRESS_POOL_SHOW, |node, AddressPoolName(name), ()| node.address_pool(name))
        .on(ADDRESS_POOL_CHANGE, |node, AddressPoolName(name), change| node.address_pool_change(name, change))
        .on(ADDRESS_POOL_DELETE, |node, AddressPoolName(name), ()| node.address_pool_delete(name));
}
