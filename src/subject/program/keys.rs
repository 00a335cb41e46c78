//! The keys of both ends of a tunnel, made for one run.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use platform::Class;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

use super::super::networks::Side;
use crate::error::RunError;

/// The private keys of the near and the far end (X25519, RFC 7748, 5).
pub(super) struct Keys([[u8; 32]; 2]);

impl Keys {
    pub(super) fn new() -> Result<Self, RunError> {
        let mut keys = [[0; 32]; 2];
        for key in &mut keys {
            let failed =
                |error: getrandom::Error| platform::Error::new(Class::Failed, "make", "a key", io::Error::from(error));
            getrandom::fill(key).map_err(failed)?;
        }
        Ok(Self(keys))
    }

    /// The private key of an end, in base64.
    pub(super) fn own(&self, side: Side) -> String {
        STANDARD.encode(self.0[usize::from(side == Side::Far)])
    }

    /// The public key of the end that is opposite this one, in base64.
    pub(super) fn of_peer(&self, side: Side) -> String {
        STANDARD.encode(x25519(self.0[usize::from(side == Side::Near)], X25519_BASEPOINT_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The keys of Bob in RFC 7748, 6.1.
    #[test]
    fn an_end_knows_its_private_key_and_the_public_one_of_the_other() {
        let hex = |text: &str| -> [u8; 32] {
            std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap_or_default())
        };
        let private = hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
        let public = hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        let keys = Keys([[1; 32], private]);
        assert_eq!(keys.own(Side::Far), STANDARD.encode(private));
        assert_eq!(keys.of_peer(Side::Near), STANDARD.encode(public));
        assert_ne!(keys.of_peer(Side::Far), keys.of_peer(Side::Near));
    }
}
