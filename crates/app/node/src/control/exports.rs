//! Exports: which clients may mount which volume.

use cairn_admin::exports::{ExportControl, ExportList, ExportView};
use cairn_admin::{Answer, ControlError};
use cairn_config::{ClientNet, ExportRule, VolumeName};
use cairn_formats::pool_file::PoolVolume;

use super::{Controller, refusal};

impl ExportControl for Controller {
    fn export_list(&self) -> Answer<'_, ExportList> {
        Box::pin(async {
            let pool = self.inner.pool.state();
            Ok(ExportList {
                exports: pool.all_volumes().map(export_view).collect(),
            })
        })
    }

    fn export_set(&self, volume: VolumeName, rules: Vec<ExportRule>) -> Answer<'_, ExportView> {
        Box::pin(async move {
            self.inner
                .pool
                .exports_change(|pool| pool.set_rules(&volume, &rules))
                .await
                .map_err(refusal)?;
            self.export_now(&volume)
        })
    }

    fn export_remove(&self, volume: VolumeName, clients: Vec<ClientNet>) -> Answer<'_, ExportView> {
        Box::pin(async move {
            self.inner
                .pool
                .exports_change(|pool| pool.remove_rules(&volume, &clients))
                .await
                .map_err(refusal)?;
            self.export_now(&volume)
        })
    }
}

impl Controller {
    fn export_now(&self, name: &VolumeName) -> Result<ExportView, ControlError> {
        let pool = self.inner.pool.state();
        pool.volume(name)
            .map(export_view)
            .map_err(|error| refusal(error.into()))
    }
}

fn export_view(volume: &PoolVolume) -> ExportView {
    ExportView {
        volume: volume.name.clone(),
        rules: volume.exports.clone(),
    }
}
