//! A stream of pieces between two ranks on one channel: all that the collectives need from an engine.

use rustix::event::PollFd;

/// Most bytes of a piece. Sender and receiver cut messages in the same way, so a piece needs no length.
pub(crate) const PIECE: usize = 128 << 10;

/// Pieces begin at multiples of this in whatever memory they come to lie in.
pub(crate) const ALIGN: usize = 64;

/// Bytes that a piece takes.
pub(crate) fn padded(len: usize) -> usize {
    len.next_multiple_of(ALIGN)
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum LinkError {
    /// The other rank is gone; nothing more comes.
    Closed(String),
    /// What no sender writes.
    Corrupt(String),
}

/// A stream of pieces in both directions. No method waits; `false` means: not now.
pub(crate) trait Link: Send {
    /// Takes the parts as one piece. After `false` it must be called with the same parts until it gives `true`.
    fn push(&mut self, parts: &[&[u8]]) -> Result<bool, LinkError>;

    /// Whether all that was pushed is on its way.
    fn flush(&mut self) -> Result<bool, LinkError>;

    /// Whether the next piece, of `len` bytes, is there.
    fn fill(&mut self, len: usize) -> Result<bool, LinkError>;

    /// The next piece, after `fill(len)` gave `true`; it begins at a multiple of [`ALIGN`].
    fn piece(&self, len: usize) -> &[u8];

    /// Ends the use of the next piece.
    fn pop(&mut self, len: usize);

    /// Whether the last `push`, `flush` or `fill` gave `false`.
    fn blocked(&self) -> bool;

    /// Asks to be woken when what gave `false` may have changed; to be followed by another try before waiting.
    fn arm(&mut self) {}

    /// What to wait for; `None` where there is nothing to wait for but time.
    fn poll_fd(&self) -> Option<PollFd<'_>>;

    /// After a wait.
    fn woken(&mut self) {}
}
