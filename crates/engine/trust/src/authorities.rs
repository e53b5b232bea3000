//! The CAs that a node trusts: that of the cluster, and a second one while one takes the place of the other.
//!
//! Owns: which of the two certificates are asked of, and both as the files of the folder have them.
//! Must not know: why there are two, and when one of them goes.

use std::sync::Arc;

use cairn_base::PoolId;

use crate::authority::{Authority, Fingerprint};
use crate::error::TrustError;

/// One or two CAs of one cluster. `Debug` hides keys.
#[derive(Clone, Debug)]
pub struct Authorities {
    issuing: Arc<Authority>,
    other: Option<Arc<Authority>>,
}

impl Authorities {
    pub fn new(issuing: Authority, other: Option<Authority>) -> Result<Self, TrustError> {
        Self::of_both(Arc::new(issuing), other.map(Arc::new))
    }

    fn of_both(issuing: Arc<Authority>, other: Option<Arc<Authority>>) -> Result<Self, TrustError> {
        if let Some(other) = &other {
            if other.cluster() != issuing.cluster() {
                return Err(TrustError::certificate("two CAs are of two clusters"));
            }
            if other.fingerprint() == issuing.fingerprint() {
                return Err(TrustError::certificate("a CA is there twice"));
            }
        }
        Ok(Self { issuing, other })
    }

    /// The one that this node's certificates are to be of.
    pub fn issuing(&self) -> &Arc<Authority> {
        &self.issuing
    }

    /// The one that is trusted beside it.
    pub fn other(&self) -> Option<&Arc<Authority>> {
        self.other.as_ref()
    }

    /// The one that issues comes first.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Authority>> {
        std::iter::once(&self.issuing).chain(&self.other)
    }

    pub fn of(&self, fingerprint: Fingerprint) -> Option<&Arc<Authority>> {
        self.all()
            .find(|authority| authority.fingerprint() == fingerprint)
    }

    pub fn cluster(&self) -> PoolId {
        self.issuing.cluster()
    }

    /// Their certificates, as etcd and its clients read them.
    pub fn certificates_pem(&self) -> String {
        let pems = self.all().map(|authority| authority.certificate_pem());
        joined(pems)
    }

    /// The keys that this node has of them.
    pub(crate) fn keys_pem(&self) -> Option<String> {
        self.keys_pem_of(|_| true)
    }

    /// The keys of some of them.
    pub(crate) fn keys_pem_of(&self, is_wanted: impl Fn(&Authority) -> bool) -> Option<String> {
        let wanted = self.all().filter(|authority| is_wanted(authority));
        let keys = joined(wanted.filter_map(|authority| authority.key_pem()));
        (!keys.is_empty()).then_some(keys)
    }

    /// Reads what [`Self::certificates_pem`] and [`Self::keys_pem`] gave. A key of a CA that is not there any more is left out: a crash
    /// may leave one. If none of the keys is of a CA that is there, they are the wrong ones.
    pub(crate) fn decode(certificates: &str, keys: Option<&str>) -> Result<Self, TrustError> {
        let mut authorities = pieces(certificates)
            .iter()
            .map(|pem| Authority::load_certificate(pem))
            .collect::<Result<Vec<_>, _>>()?;
        if let Some(keys) = keys {
            let keys = pieces(keys);
            let mut problem = keys
                .is_empty()
                .then(|| TrustError::certificate("its key: there is none"));
            let mut is_found = false;
            for key in &keys {
                for authority in &mut authorities {
                    match authority.with_key(key) {
                        Ok(with_key) => {
                            *authority = with_key;
                            is_found = true;
                        }
                        Err(error) => problem = problem.or(Some(error)),
                    }
                }
            }
            if let Some(problem) = problem.filter(|_| !is_found) {
                return Err(problem);
            }
        }
        let mut authorities = authorities.into_iter();
        let issuing = authorities.next();
        let issuing = issuing.ok_or_else(|| TrustError::certificate("there is none, as PEM"))?;
        let other = authorities.next();
        match authorities.next() {
            None => Self::new(issuing, other),
            Some(_) => Err(TrustError::certificate("there are more than two")),
        }
    }

    /// Trusts this one also, in place of another one beside the first.
    pub(crate) fn and(&self, other: Authority) -> Result<Self, TrustError> {
        Self::of_both(Arc::clone(&self.issuing), Some(Arc::new(other)))
    }

    /// These two authorities, with the given one first.
    pub(crate) fn preferring(&self, fingerprint: Fingerprint) -> Result<Self, TrustError> {
        match &self.other {
            _ if self.issuing.fingerprint() == fingerprint => Ok(self.clone()),
            Some(other) if other.fingerprint() == fingerprint => Ok(Self {
                issuing: Arc::clone(other),
                other: Some(Arc::clone(&self.issuing)),
            }),
            _ => Err(not_trusted(fingerprint)),
        }
    }

    /// These authorities without the given one, which must not be the last.
    pub(crate) fn without(&self, fingerprint: Fingerprint) -> Result<Self, TrustError> {
        let left: Vec<&Arc<Authority>> = self
            .all()
            .filter(|authority| authority.fingerprint() != fingerprint)
            .collect();
        match left.as_slice() {
            [first, rest @ ..] => Self::of_both(Arc::clone(first), rest.first().copied().cloned()),
            [] => Err(TrustError::certificate("no other CA is trusted")),
        }
    }

    /// These authorities, with the given one replacing the one with its certificate.
    pub(crate) fn with(&self, authority: Authority) -> Result<Self, TrustError> {
        let fingerprint = authority.fingerprint();
        let authority = Arc::new(authority);
        if self.issuing.fingerprint() == fingerprint {
            return Self::of_both(authority, self.other.clone());
        }
        match &self.other {
            Some(other) if other.fingerprint() == fingerprint => {
                Self::of_both(Arc::clone(&self.issuing), Some(authority))
            }
            _ => Err(not_trusted(fingerprint)),
        }
    }
}

fn not_trusted(fingerprint: Fingerprint) -> TrustError {
    TrustError::Certificate(format!("this node does not trust the CA {fingerprint}"))
}

/// Several of PEM in one text.
fn joined<'a>(pems: impl Iterator<Item = &'a str>) -> String {
    let mut text = String::new();
    for pem in pems {
        text.push_str(pem);
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    text
}

/// Each of several in one text. A text that is no PEM is a piece as well, which nobody can read then.
fn pieces(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece = String::new();
    for line in text.lines() {
        piece.push_str(line);
        piece.push('\n');
        if line.starts_with("-----END ") {
            pieces.push(std::mem::take(&mut piece));
        }
    }
    if !piece.trim().is_empty() {
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use cairn_base::Timestamp;

    use super::*;

    const NOW: Timestamp = Timestamp::new(1_767_225_600, 5);

    fn authority() -> Authority {
        Authority::create(PoolId(9), NOW).unwrap()
    }

    fn prints(authorities: &Authorities) -> Vec<Fingerprint> {
        authorities.all().map(|it| it.fingerprint()).collect()
    }

    #[test]
    fn two_authorities_are_what_they_were_after_they_were_stored() {
        let (old, new) = (authority(), authority());
        let want = [old.fingerprint(), new.fingerprint()];
        for (with_old, with_new) in [(true, true), (true, false), (false, true), (false, false)] {
            let of = |authority: &Authority, with: bool| match with {
                true => authority.with_key(authority.key_pem().unwrap()).unwrap(),
                false => authority.without_key(),
            };
            let both = Authorities::new(of(&old, with_old), Some(of(&new, with_new))).unwrap();
            let keys = both.keys_pem();
            assert_eq!(keys.is_some(), with_old || with_new);
            let again = Authorities::decode(&both.certificates_pem(), keys.as_deref()).unwrap();
            assert_eq!(prints(&again), want);
            assert_eq!(again.issuing().has_key(), with_old);
            assert_eq!(again.other().unwrap().has_key(), with_new);
            assert_eq!(again.certificates_pem(), both.certificates_pem());
            assert_eq!(again.keys_pem(), keys);
        }
        // One alone is stored as it was made.
        let one = Authorities::new(authority(), None).unwrap();
        assert_eq!(one.certificates_pem(), one.issuing().certificate_pem());
        assert_eq!(one.keys_pem().as_deref(), one.issuing().key_pem());
    }

    #[test]
    fn a_key_that_a_crash_left_is_left_out_and_wrong_ones_are_refused() {
        let (old, new) = (authority(), authority());
        let (old_key, new_key) = (old.key_pem().unwrap(), new.key_pem().unwrap());
        let both = format!("{old_key}{new_key}");
        let left = Authorities::decode(new.certificate_pem(), Some(&both)).unwrap();
        assert_eq!(left.keys_pem().as_deref(), Some(new_key));
        let pem = old.certificate_pem();
        let three = format!(
            "{pem}{}{}",
            new.certificate_pem(),
            authority().certificate_pem()
        );
        let twice = format!("{pem}{pem}");
        let and_more = format!("{pem}x");
        let cases: [(&str, &str, Option<&str>); 9] = [
            ("nothing", "", None),
            ("no PEM", "x", None),
            ("something follows it", &and_more, None),
            ("a cut one", &pem[..pem.len() / 2], None),
            ("the same twice", &twice, None),
            ("three", &three, None),
            ("a key of another one", pem, Some(new_key)),
            ("no key", pem, Some("")),
            ("a cut key", pem, Some(&old_key[..old_key.len() / 2])),
        ];
        for (name, certificates, keys) in cases {
            let refused = Authorities::decode(certificates, keys).map(|_| ());
            assert!(
                matches!(refused, Err(TrustError::Certificate(_))),
                "{name}: {refused:?}"
            );
        }
    }

    #[test]
    fn one_authority_takes_the_place_of_another() {
        let (old, new, lost) = (authority(), authority(), authority());
        let [first, second, third] = [&old, &new, &lost].map(Authority::fingerprint);
        let one = Authorities::new(old, None).unwrap();
        assert!(one.preferring(second).is_err() && one.without(first).is_err());
        let with_lost = one.and(lost).unwrap();
        assert_eq!(prints(&with_lost), [first, third]);
        let both = with_lost.and(new.without_key()).unwrap();
        assert_eq!(prints(&both), [first, second]);
        assert!(!both.other().unwrap().has_key());
        let both = both.with(new).unwrap();
        assert!(both.other().unwrap().has_key());
        assert_eq!(prints(&both.preferring(first).unwrap()), [first, second]);
        let turned = both.preferring(second).unwrap();
        assert_eq!(prints(&turned), [second, first]);
        let left = turned.without(first).unwrap();
        assert_eq!(prints(&left), [second]);
        assert!(left.of(first).is_none() && left.of(second).is_some());
        // An absent CA is gone already.
        assert_eq!(prints(&left.without(first).unwrap()), [second]);
        let abroad = Authority::create(PoolId(5), NOW).unwrap();
        assert!(left.and(abroad).is_err());
    }
}
