//! What the typed configurations of the engines share.

use crate::error::{Error, Result};
use crate::url::EngineUrl;

/// A user and a password.
#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Login {
    pub(crate) fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
        }
    }

    /// That of a URL. One without the other is this error.
    pub(crate) fn of(url: &EngineUrl, half: impl FnOnce() -> Error) -> Result<Option<Self>> {
        match (&url.user, &url.password) {
            (Some(user), Some(password)) => Ok(Some(Self::new(user, password))),
            (None, None) => Ok(None),
            _ => Err(half()),
        }
    }
}

/// `Debug`, which shows the location and no password, and `FromStr`, which reads URLs of the engine's own `DRIVER`.
macro_rules! by_url {
    ($config:ident) => {
        /// Without the password.
        impl std::fmt::Debug for $config {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({})", stringify!($config), self.location())
            }
        }

        /// From a URL.
        impl std::str::FromStr for $config {
            type Err = crate::error::Error;

            fn from_str(url: &str) -> crate::error::Result<Self> {
                Self::from_url(&DRIVER.parse(url)?)
            }
        }
    };
}

/// Setters, each of the field of its name.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty),+ $(,)?) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )+};
}

pub(crate) use {by_url, setters};
