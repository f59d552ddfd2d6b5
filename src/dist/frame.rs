//! Messages with a length, for the rendezvous: nothing there is trusted before the token is compared.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Writes one message.
pub(crate) fn write(mut stream: &TcpStream, message: &[u8]) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(4 + message.len());
    bytes.extend_from_slice(&(message.len() as u32).to_le_bytes());
    bytes.extend_from_slice(message);
    stream.write_all(&bytes)
}

/// Reads exactly `into`, at most until `deadline` (a peer that sends a byte now and then cannot extend it).
fn read_exact(mut stream: &TcpStream, mut into: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !into.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(into) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(n) => into = &mut into[n..],
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut
                ) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads one message of at most `most` bytes.
pub(crate) fn read(stream: &TcpStream, most: usize, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    read_exact(stream, &mut len, deadline)?;
    let len = u32::from_le_bytes(len) as usize;
    if len > most {
        return Err(io::Error::new(
            ErrorKind::InvalidData,
            format!("a message of {len} bytes, more than {most}"),
        ));
    }
    let mut message = vec![0; len];
    read_exact(stream, &mut message, deadline)?;
    Ok(message)
}

/// Fields of a message, each with its length.
#[derive(Default)]
pub(crate) struct Fields(pub(crate) Vec<u8>);

impl Fields {
    pub(crate) fn with(mut self, field: &[u8]) -> Self {
        self.0
            .extend_from_slice(&(field.len() as u32).to_le_bytes());
        self.0.extend_from_slice(field);
        self
    }
}

/// Takes the next field off.
pub(crate) fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, after) = rest.split_first_chunk::<4>()?;
    let len = u32::from_le_bytes(*len) as usize;
    let field = after.get(..len)?;
    *rest = &after[len..];
    Some(field)
}

/// Takes the next field off as a text.
pub(crate) fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a str> {
    std::str::from_utf8(field(rest)?).ok()
}

/// Takes the next field off as a number.
pub(crate) fn number(rest: &mut &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(field(rest)?.try_into().ok()?))
}

/// Whether two secrets are equal, in a time that tells nothing about where they differ.
pub(crate) fn same_secret(a: &[u8], b: &[u8]) -> bool {
    let differ = a
        .iter()
        .zip(b)
        .fold(u8::from(a.len() != b.len()), |d, (x, y)| d | (x ^ y));
    std::hint::black_box(differ) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_out_as_they_went_in() {
        let message = Fields::default().with(b"ab").with(&7u64.to_le_bytes()).0;
        let mut rest = &message[..];
        assert_eq!(text(&mut rest), Some("ab"));
        assert_eq!(number(&mut rest), Some(7));
        assert_eq!(field(&mut rest), None);
        let mut short = &message[..5];
        assert_eq!(field(&mut short), None);
    }

    #[test]
    fn secrets_are_the_same_only_as_a_whole() {
        assert!(same_secret(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!same_secret(b"abc", other));
        }
    }
}
