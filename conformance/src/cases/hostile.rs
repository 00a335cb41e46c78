//! Packets that no honest client sends, or more of them than any does. Other connections must go on.

pub(super) mod acknowledged;
pub(super) mod crowds;
pub(super) mod guesses;
pub(super) mod nonsense;
pub(super) mod received;
pub(super) mod reuse;
pub(super) mod syns;
