//! Exports: which clients may mount which volume: JSON, routes, and what they ask of a node.

use cairn_config::{ClientNet, ExportRule, VolumeName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::{ErrorDetail, ErrorKind};
use crate::control::{Answer, ControlError};
use crate::endpoint::{
    Argument, Endpoint, Parameters, Url, UrlParts, endpoints, get, put, remove, text,
};
use crate::server::Table;

/// The clients that may mount a volume. Without rules no client may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportView {
    #[schema(value_type = String, example = "main")]
    pub volume: VolumeName,
    pub rules: Vec<ExportRule>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportList {
    pub exports: Vec<ExportView>,
}

/// Rules to set: each replaces the rule for the same client, if there is one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExportSet {
    pub rules: Vec<ExportRule>,
}

endpoints! {
    /// Lists the exports: which clients may mount which volume.
    EXPORT_LIST: Endpoint<(), (), ExportList> = get("/api/v1/exports").list("exports", &["volume"]);

    /// Adds rules to the export of a volume, or replaces those for the same clients.
    EXPORT_SET: Endpoint<VolumeName, ExportSet, ExportView> = put("/api/v1/exports/{volume}");

    /// Removes the rules of the clients in `client`, which may be given more than once; without `client`, removes all rules. Other
    /// query keys are errors.
    EXPORT_REMOVE: Endpoint<(VolumeName, Clients), (), ExportView> = remove("/api/v1/exports/{volume}");

}

/// Clients whose rules are removed; none: those of all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clients(pub Vec<ClientNet>);

/// An address or a network, of IPv4 or IPv6.
const CLIENT: &str = r"^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])){3}(/(3[0-2]|[12]?[0-9]))?|(([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}|([0-9A-Fa-f]{1,4}:){1,7}:|([0-9A-Fa-f]{1,4}:){1,6}(:[0-9A-Fa-f]{1,4}){1,1}|([0-9A-Fa-f]{1,4}:){1,5}(:[0-9A-Fa-f]{1,4}){1,2}|([0-9A-Fa-f]{1,4}:){1,4}(:[0-9A-Fa-f]{1,4}){1,3}|([0-9A-Fa-f]{1,4}:){1,3}(:[0-9A-Fa-f]{1,4}){1,4}|([0-9A-Fa-f]{1,4}:){1,2}(:[0-9A-Fa-f]{1,4}){1,5}|([0-9A-Fa-f]{1,4}:){1,1}(:[0-9A-Fa-f]{1,4}){1,6}|:(:[0-9A-Fa-f]{1,4}){1,7}|::)(/(12[0-8]|1[01][0-9]|[1-9]?[0-9]))?)$";

impl Argument for Clients {
    fn describe(to: &mut Parameters) {
        to.in_query("client", text(2, 49).pattern(Some(CLIENT)));
    }

    fn read(from: &mut UrlParts<'_>) -> Result<Self, ControlError> {
        let query = from.query(&["client"])?;
        let clients = query.values("client").map(|text| {
            text.parse::<ClientNet>()
                .map_err(|error| ControlError::new(ErrorKind::Invalid, error.to_string()))
        });
        clients.collect::<Result<Vec<_>, _>>().map(Self)
    }

    fn write(&self, to: &mut Url) -> Result<(), ErrorDetail> {
        for client in &self.0 {
            to.ask("client", &client.to_string());
        }
        Ok(())
    }
}

/// What a node does with exports. Changes are durable when they are answered.
pub trait ExportControl: Send + Sync {
    fn export_list(&self) -> Answer<'_, ExportList>;
    fn export_set(&self, volume: VolumeName, rules: Vec<ExportRule>) -> Answer<'_, ExportView>;
    /// Removes the rules of these clients; all rules when none is named.
    fn export_remove(&self, volume: VolumeName, clients: Vec<ClientNet>) -> Answer<'_, ExportView>;
}

pub(crate) fn routes(table: &mut Table) {
    table
        .slice::<dyn ExportControl>(|node| Ok(node.exports()))
        .on(EXPORT_LIST, |node, (), ()| node.export_list())
        .on(EXPORT_SET, |node, volume, set| {
            node.export_set(volume, set.rules)
        })
        .on(EXPORT_REMOVE, |node, (volume, Clients(clients)), ()| {
            node.export_remove(volume, clients)
        });
}
