//! The keys of both ends of a tunnel, made for one run.

use std::io;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use platform::Class;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};

use super::super::networks::Side;
use crate::error::RunError;

/// The private keys of the near end, and of the far end of each peer (X25519, RFC 7748, 5).
pub(super) struct Keys {
    near: [u8; 32],
    far: Vec<[u8; 32]>,
}

impl Keys {
    pub(super) fn new(peers: u16) -> Result<Self, RunError> {
        Ok(Self { near: random()?, far: (0..peers).map(|_| random()).collect::<Result<_, _>>()? })
    }

    fn of(&self, side: Side, peer: u16) -> [u8; 32] {
        let of_peer = self.far.get(usize::from(peer)).copied().unwrap_or_default();
        if side == Side::Near { self.near } else { of_peer }
    }

    /// The private key of an end, in base64.
    pub(super) fn own(&self, side: Side, peer: u16) -> String {
        STANDARD.encode(self.of(side, peer))
    }

    /// The public key of the end that is opposite this one, in base64.
    pub(super) fn of_peer(&self, side: Side, peer: u16) -> String {
        STANDARD.encode(x25519(self.of(side.opposite(), peer), X25519_BASEPOINT_BYTES))
    }
}

fn random() -> Result<[u8; 32], RunError> {
    let mut key = [0; 32];
    let failed = |error: getrandom::Error| platform::Error::new(Class::Failed, "make", "a key", io::Error::from(error));
    getrandom::fill(&mut key).map_err(failed)?;
    Ok(key)
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
        let keys = Keys { near: [1; 32], far: vec![[2; 32], private] };
        assert_eq!(keys.own(Side::Far, 1), STANDARD.encode(private));
        assert_eq!(keys.of_peer(Side::Near, 1), STANDARD.encode(public));
        assert_ne!(keys.of_peer(Side::Near, 0), keys.of_peer(Side::Near, 1));
        assert_eq!(keys.of_peer(Side::Far, 0), keys.of_peer(Side::Far, 1));
        assert_eq!(keys.own(Side::Near, 0), keys.own(Side::Near, 1));
    }
}
