//! Requests to the provider: for its configuration, its keys, and a token for a code.
//!
//! Owns: requests to the provider and their limits, what is remembered of it and for how long.
//! Must not know: who is let in for which claims (`claims`), what a token must be (`id_token`).

use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use cairn_base::env::Env;
use cairn_config::{Oidc, is_safe_url};
use cairn_outbound::Client;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;
use url::Url;
use url::form_urlencoded::byte_serialize;
use zeroize::Zeroizing;

use crate::claims::{Person, PersonName};
use crate::id_token::{self, Expected, TOKEN_LEN_BYTES_MAX, TokenError, shortened};
use crate::keys::{self, Key};

/// For one request to the provider.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// Longest answer of the provider, in bytes: a token, and two more of the same length beside it.
const ANSWER_LEN_BYTES_MAX: usize = 4 * TOKEN_LEN_BYTES_MAX;
/// The configuration and the keys are asked for anew after so long.
const KNOWN_FOR: Duration = Duration::from_secs(600);
/// Keys that are not known are asked for at most so often: anybody can begin a log-in.
const KEYS_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A provider that did not answer is not asked again for so long.
const FAILED_FOR: Duration = Duration::from_secs(1);
const SECRET_LEN_BYTES_MAX: u64 = 4096;
/// The page of the console to which the provider sends people back.
const RETURN_PATH: &str = "/console/login";

/// Why nobody was let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OidcError {
    #[error("the OpenID provider does not answer: {0}")]
    Away(String),
    #[error("the OpenID provider answers what cannot be used: {0}")]
    Answer(String),
    #[error("the client secret for the OpenID provider, in {path}: {why}")]
    Secret { path: String, why: String },
    #[error("the OpenID provider does not take this log-in: {0}")]
    Code(String),
    #[error("the ID token of the OpenID provider proves nothing: {0}")]
    Token(#[from] TokenError),
    #[error("the OpenID provider tells no name: the ID token has no claim {claim} with a text")]
    NoName { claim: String },
    #[error(
        "the OpenID provider calls you \"{name}\" in {claim}; a name has 1 to 128 letters, digits, '.', '_', '-', '+' or '@'"
    )]
    BadName { claim: String, name: String },
    #[error(
        "{name} may not log in: no value of the claim {claim} gives a role here; the OpenID provider tells {}",
        told(.values)
    )]
    NoRole {
        name: PersonName,
        claim: String,
        values: String,
    },
}

fn told(values: &str) -> &str {
    if values.is_empty() { "none" } else { values }
}

/// The secrets of a log-in that only the browser that began it knows.
pub struct Login {
    pub state: String,
    pub nonce: String,
    /// 43 to 128 letters and digits.
    pub verifier: String,
}

/// The provider's configuration, as far as it is needed.
#[derive(Clone, Debug, Deserialize)]
struct Metadata {
    issuer: String,
    authorization_endpoint: String,
    token_endpoint: String,
    jwks_uri: String,
    #[serde(default)]
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
}

#[derive(Clone)]
struct ProviderDocuments {
    metadata: Metadata,
    keys: Vec<Key>,
}

#[derive(Default)]
struct Memory {
    known: Option<(Duration, ProviderDocuments)>,
    failed: Option<(Duration, OidcError)>,
    again_at: Option<Duration>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    id_token: Option<String>,
}

#[derive(Deserialize)]
struct TokenRefusal {
    error: String,
}

/// An OpenID provider.
pub struct Provider {
    settings: Oidc,
    http: Client,
    env: Env,
    /// Held while it is asked: many log-ins at a time ask once.
    memory: Mutex<Memory>,
}

impl Provider {
    /// Fails if there is no secret where the settings say, or no HTTP client can be made.
    pub fn new(settings: Oidc, env: Env) -> Result<Self, OidcError> {
        if let Some(path) = &settings.client_secret_file {
            read_secret(path)?;
        }
        // It follows no redirects: what the provider's own addresses say is asked, and nothing else that an answer names.
        let http = Client::new(reqwest::Client::builder().timeout(REQUEST_MAX))
            .map_err(|error| OidcError::Away(plain(&error)))?;
        Ok(Self {
            settings,
            http,
            env,
            memory: Mutex::default(),
        })
    }

    /// What the log-in page calls it.
    pub fn text(&self) -> &str {
        &self.settings.text
    }

    /// Another one for other settings: what was let in by those before is not let in by these.
    pub fn stamp(&self) -> u64 {
        let digest = Sha256::digest(format!("{:?}", self.settings));
        let (first, _) = digest.split_at(8);
        first
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
    }

    /// Where the provider is to send a browser that has the console open at `origin`; `None` if that is none of the
    /// addresses in the settings.
    pub fn redirect_of(&self, origin: &str) -> Option<String> {
        let is_it = |address: &&String| address.eq_ignore_ascii_case(origin);
        let address = self.settings.addresses.iter().find(is_it)?;
        Some(format!("{address}{RETURN_PATH}"))
    }

    /// The addresses where the console may be open.
    pub fn addresses(&self) -> String {
        self.settings.addresses.join(", ")
    }

    /// Where a browser is sent to log in.
    pub async fn address(&self, login: &Login, redirect: &str) -> Result<String, OidcError> {
        let known = self.known().await?;
        let endpoint = &known.metadata.authorization_endpoint;
        let mut address = Url::parse(endpoint)
            .map_err(|_| OidcError::Answer(format!("\"{}\" is no address", shortened(endpoint))))?;
        let digest = Sha256::digest(login.verifier.as_bytes());
        let challenge = BASE64_URL_SAFE_NO_PAD.encode(digest);
        let scopes = self.settings.scopes.iter().map(String::as_str);
        let mut scope = vec!["openid"];
        scope.extend(scopes.filter(|scope| *scope != "openid"));
        address
            .query_pairs_mut()
            .append_pair("response_type", "code")
            .append_pair("client_id", &self.settings.client_id)
            .append_pair("redirect_uri", redirect)
            .append_pair("scope", &scope.join(" "))
            .append_pair("state", &login.state)
            .append_pair("nonce", &login.nonce)
            .append_pair("code_challenge", &challenge)
            .append_pair("code_challenge_method", "S256");
        Ok(address.into())
    }

    /// Who came back with this code.
    pub async fn person(
        &self,
        login: &Login,
        redirect: &str,
        code: &str,
    ) -> Result<Person, OidcError> {
        let known = self.known().await?;
        let token = self.token(&known.metadata, login, redirect, code).await?;
        let claims = match self.check(&known.keys, &token, login) {
            // The provider has new keys, perhaps.
            Err(TokenError::UnknownKey) => {
                let keys = self.keys_again().await?;
                self.check(&keys, &token, login)?
            }
            other => other?,
        };
        Person::of(&claims, &self.settings)
    }

    fn check(
        &self,
        keys: &[Key],
        token: &str,
        login: &Login,
    ) -> Result<serde_json::Map<String, serde_json::Value>, TokenError> {
        let expected = Expected {
            issuer: &self.settings.issuer,
            client_id: &self.settings.client_id,
            nonce: &login.nonce,
            now_seconds: self.env.clock.now().seconds,
        };
        id_token::check(token, keys, &expected)
    }

    async fn known(&self) -> Result<ProviderDocuments, OidcError> {
        let mut memory = self.memory.lock().await;
        let now = self.env.clock.monotonic();
        if let Some((at, known)) = &memory.known
            && now.saturating_sub(*at) < KNOWN_FOR
        {
            return Ok(known.clone());
        }
        if let Some((at, error)) = &memory.failed
            && now.saturating_sub(*at) < FAILED_FOR
        {
            return Err(error.clone());
        }
        match self.ask().await {
            Ok(known) => {
                memory.known = Some((self.env.clock.monotonic(), known.clone()));
                memory.failed = None;
                Ok(known)
            }
            Err(error) => {
                memory.failed = Some((self.env.clock.monotonic(), error.clone()));
                Err(error)
            }
        }
    }

    /// The provider's keys of now, or those that were asked for just before.
    async fn keys_again(&self) -> Result<Vec<Key>, OidcError> {
        let mut memory = self.memory.lock().await;
        let now = self.env.clock.monotonic();
        let is_recent = |at: Duration| now.saturating_sub(at) < KEYS_AGAIN_AFTER;
        if let Some((_, known)) = &memory.known
            && memory.again_at.is_some_and(is_recent)
        {
            return Ok(known.keys.clone());
        }
        memory.again_at = Some(now);
        let known = self.ask().await?;
        memory.known = Some((self.env.clock.monotonic(), known.clone()));
        Ok(known.keys)
    }

    async fn ask(&self) -> Result<ProviderDocuments, OidcError> {
        let issuer = &self.settings.issuer;
        let address = format!(
            "{}/.well-known/openid-configuration",
            issuer.trim_end_matches('/')
        );
        let metadata: Metadata = read(&address, &self.get(&address).await?)?;
        if metadata.issuer != *issuer {
            let other = shortened(&metadata.issuer);
            return Err(OidcError::Answer(format!(
                "{address} is of {other}, and oidc_issuer is {issuer}: they have to be alike to the letter"
            )));
        }
        let endpoints = [
            &metadata.authorization_endpoint,
            &metadata.token_endpoint,
            &metadata.jwks_uri,
        ];
        if let Some(other) = endpoints.into_iter().find(|url| !is_safe_url(url)) {
            let other = shortened(other);
            return Err(OidcError::Answer(format!(
                "{address} has \"{other}\", which is not encrypted"
            )));
        }
        let answer = self.get(&metadata.jwks_uri).await?;
        let keys = keys::read(&answer).map_err(|error| {
            OidcError::Answer(format!(
                "there are no keys at {}: it is not the JSON of a key set ({})",
                shortened(&metadata.jwks_uri),
                place_of(&error)
            ))
        })?;
        Ok(ProviderDocuments { metadata, keys })
    }

    /// The client for requests to an address, if that may be asked for anything.
    fn client_for(&self, address: &str) -> Result<(&reqwest::Client, Url), OidcError> {
        let url = Url::parse(address)
            .map_err(|_| OidcError::Answer(format!("\"{}\" is no address", shortened(address))))?;
        match self.http.to(&url) {
            Ok(client) => Ok((client, url)),
            Err(refused) => Err(OidcError::Answer(shortened(&refused.to_string()))),
        }
    }

    async fn get(&self, address: &str) -> Result<Vec<u8>, OidcError> {
        let (client, url) = self.client_for(address)?;
        let (status, body) = answered(address, client.get(url)).await?;
        match status {
            200 => Ok(body),
            _ => Err(OidcError::Answer(format!(
                "{} answers with status {status}",
                shortened(address)
            ))),
        }
    }

    /// The ID token for a code.
    async fn token(
        &self,
        metadata: &Metadata,
        login: &Login,
        redirect: &str,
        code: &str,
    ) -> Result<String, OidcError> {
        let secret = match self.settings.client_secret_file.clone() {
            // A folder may be away.
            Some(path) => Some(
                tokio::task::spawn_blocking(move || read_secret(&path))
                    .await
                    .map_err(|error| OidcError::Away(error.to_string()))??,
            ),
            None => None,
        };
        let client_id = self.settings.client_id.as_str();
        let mut fields = vec![
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", redirect),
            ("code_verifier", &login.verifier),
        ];
        let (client, url) = self.client_for(&metadata.token_endpoint)?;
        let mut request = client.post(url);
        let methods = metadata.token_endpoint_auth_methods_supported.as_deref();
        let takes = |method: &str| methods.is_none_or(|all| all.iter().any(|it| it == method));
        match secret.as_ref().map(|secret| secret.as_str()) {
            Some(secret) if takes("client_secret_basic") => {
                let form = |text: &str| byte_serialize(text.as_bytes()).collect::<String>();
                let both = Zeroizing::new(format!("{}:{}", form(client_id), form(secret)));
                let shown = format!("Basic {}", BASE64_STANDARD.encode(both.as_bytes()));
                request = request.header("authorization", shown);
            }
            Some(secret) => fields.extend([("client_id", client_id), ("client_secret", secret)]),
            None => fields.push(("client_id", client_id)),
        }
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(fields)
            .finish();
        let request = request
            .header("content-type", "application/x-www-form-urlencoded")
            .header("accept", "application/json")
            .body(body);
        let address = &metadata.token_endpoint;
        let (status, answer) = answered(address, request).await?;
        if status == 200 {
            let answer: TokenAnswer = read(address, &answer)?;
            let absent = || OidcError::Answer(format!("{} gives no ID token", shortened(address)));
            return answer.id_token.ok_or_else(absent);
        }
        // The code, and none of the words beside it.
        match serde_json::from_slice::<TokenRefusal>(&answer) {
            Ok(refusal) if is_error_code(&refusal.error) => Err(OidcError::Code(refusal.error)),
            _ => Err(OidcError::Answer(format!(
                "{} answers with status {status}",
                shortened(address)
            ))),
        }
    }
}

/// Whether it is an error code as providers have them (RFC 6749, section 5.2; RFC 6749, section 8.5 for more).
fn is_error_code(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=64).contains(&text.len()) && text.bytes().all(is_plain)
}

/// Where JSON is not what belongs there. The error itself has words of the answer.
fn place_of(error: &serde_json::Error) -> String {
    format!("line {}, column {}", error.line(), error.column())
}

/// Sends a request; gives back status and body.
async fn answered(
    address: &str,
    request: reqwest::RequestBuilder,
) -> Result<(u16, Vec<u8>), OidcError> {
    let away = |error: reqwest::Error| {
        OidcError::Away(format!("{}: {}", shortened(address), plain(&error)))
    };
    let mut answer = request.send().await.map_err(away)?;
    let mut body = Vec::new();
    while let Some(part) = answer.chunk().await.map_err(away)? {
        body.extend_from_slice(&part);
        if body.len() > ANSWER_LEN_BYTES_MAX {
            let address = shortened(address);
            return Err(OidcError::Answer(format!("{address} answers too much")));
        }
    }
    Ok((answer.status().as_u16(), body))
}

/// What a failure says, without addresses, which may have a code in them.
fn plain(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return format!("no answer within {} s", REQUEST_MAX.as_secs());
    }
    let mut last: &dyn std::error::Error = error;
    while let Some(next) = last.source() {
        last = next;
    }
    shortened(&last.to_string())
}

fn read<'a, T: Deserialize<'a>>(address: &str, answer: &'a [u8]) -> Result<T, OidcError> {
    serde_json::from_slice(answer).map_err(|error| {
        OidcError::Answer(format!(
            "{} does not answer with the JSON that belongs there ({})",
            shortened(address),
            place_of(&error)
        ))
    })
}

/// The first line of the file.
fn read_secret(path: &Path) -> Result<Zeroizing<String>, OidcError> {
    use std::io::Read as _;
    let failed = |why: String| OidcError::Secret {
        path: PathBuf::from(path).display().to_string(),
        why,
    };
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut content = Zeroizing::new(String::new());
    file.take(SECRET_LEN_BYTES_MAX)
        .read_to_string(&mut content)
        .map_err(|error| failed(error.to_string()))?;
    let line = content.lines().next().unwrap_or_default().trim();
    match line.is_empty() {
        true => Err(failed("its first line is empty".to_owned())),
        false => Ok(Zeroizing::new(line.to_owned())),
    }
}
