//! Classes of service of a pool.
//!
//! Owns: which classes there are, and whether a volume can be in one. Must not know: how rates are kept to.

use super::{ChangeError, PoolState, PoolVolume};
use crate::settings::{CLASSES_MAX, ClassName, ClassSpec, VolumeName, built_in};

impl PoolState {
    /// What a class says, also a built-in one.
    pub fn class(&self, name: &ClassName) -> Option<&ClassSpec> {
        static UNLIMITED: std::sync::LazyLock<ClassSpec> =
            std::sync::LazyLock::new(ClassSpec::default);
        let found = built_in().get(name).or_else(|| self.classes.get(name));
        found.or_else(|| name.is_internal().then(|| &*UNLIMITED))
    }

    /// What the server's own work keeps to, in bytes per second on each node; 0: no limit.
    pub fn internal_rate(&self) -> u64 {
        let class = self.classes.get(&ClassName::internal());
        class.and_then(|class| class.total_throughput).unwrap_or(0)
    }

    /// What a volume's class says; nothing of one that is not known here.
    pub fn class_of(&self, volume: &PoolVolume) -> Option<&ClassSpec> {
        self.class(volume.class.as_ref()?)
    }

    /// Whether all that is asked of volumes' classes can be had.
    pub fn check_class_of(&self, volume: &PoolVolume) -> Result<(), ChangeError> {
        let Some(class) = &volume.class else {
            return Ok(());
        };
        if class.is_internal() {
            return Err(ChangeError::ClassProblem {
                class: class.clone(),
                problem: "it is for the work of the server itself; no volume can be in it"
                    .to_owned(),
            });
        }
        let spec = self
            .class(class)
            .ok_or_else(|| ChangeError::NoClass(class.clone()))?;
        match spec.problem_of_size(volume.settings.size_limit.bytes()) {
            None => Ok(()),
            Some(problem) => Err(ChangeError::ClassOfVolume {
                volume: volume.name.clone(),
                class: class.clone(),
                problem,
            }),
        }
    }

    /// Makes a class, or has one say something else; its volumes must be able to follow.
    pub fn set_class(
        &mut self,
        name: &ClassName,
        spec: ClassSpec,
        is_new: bool,
    ) -> Result<(), ChangeError> {
        if built_in().contains_key(name) {
            return Err(ChangeError::ClassBuiltIn(name.clone()));
        }
        if name.is_internal() {
            return self.set_internal_class(spec, is_new);
        }
        match (is_new, self.classes.contains_key(name)) {
            (true, true) => return Err(ChangeError::ClassExists(name.clone())),
            (false, false) => return Err(ChangeError::NoClass(name.clone())),
            (true, false) if self.classes.len() >= CLASSES_MAX => {
                return Err(ChangeError::TooManyClasses);
            }
            _ => {}
        }
        if let Some(problem) = spec.problem() {
            let class = name.clone();
            return Err(ChangeError::ClassProblem { class, problem });
        }
        self.classes.insert(name.clone(), spec);
        let mut in_it = self
            .all_volumes()
            .filter(|volume| volume.class.as_ref() == Some(name));
        in_it.try_for_each(|volume| self.check_class_of(volume))
    }

    /// The class of the server's own work is always there; it is kept if it limits something.
    fn set_internal_class(&mut self, spec: ClassSpec, is_new: bool) -> Result<(), ChangeError> {
        let class = ClassName::internal();
        if is_new {
            return Err(ChangeError::ClassExists(class));
        }
        if let Some(problem) = spec.problem_of_internal() {
            return Err(ChangeError::ClassProblem { class, problem });
        }
        match spec.total_throughput {
            Some(_) => drop(self.classes.insert(class, spec)),
            None => drop(self.classes.remove(&class)),
        }
        Ok(())
    }

    pub fn delete_class(&mut self, name: &ClassName) -> Result<(), ChangeError> {
        if built_in().contains_key(name) || name.is_internal() {
            return Err(ChangeError::ClassBuiltIn(name.clone()));
        }
        let in_it = self
            .all_volumes()
            .filter(|volume| volume.class.as_ref() == Some(name));
        let volumes: Vec<VolumeName> = in_it.map(|volume| volume.name.clone()).collect();
        if !volumes.is_empty() {
            let class = name.clone();
            return Err(ChangeError::ClassInUse { class, volumes });
        }
        match self.classes.remove(name) {
            Some(_) => Ok(()),
            None => Err(ChangeError::NoClass(name.clone())),
        }
    }
}
