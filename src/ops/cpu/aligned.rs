//! Memory for tables and blocks.

/// Floats that begin a cache line: a vector of 64 bytes that crosses one is slow to store and to load again.
pub struct Aligned {
    lines: Vec<Line>,
    len: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(64))] // read and written as a slice of floats
struct Line(#[allow(dead_code)] [f32; 16]);

impl Aligned {
    /// `len` zeros.
    #[must_use]
    pub fn zeros(len: usize) -> Self {
        Self {
            lines: vec![Line([0.0; 16]); len.div_ceil(16)],
            len,
        }
    }

    /// Each of `columns` repeated to `width` floats.
    #[must_use]
    pub fn repeated(columns: &[&[f32]], width: usize) -> Self {
        let mut table = Self::zeros(columns.len() * width);
        for (row, column) in table.chunks_exact_mut(width).zip(columns) {
            for part in row.chunks_mut(column.len()) {
                part.copy_from_slice(&column[..part.len()]);
            }
        }
        table
    }
}

impl std::ops::Deref for Aligned {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        // SAFETY: lines are 16 floats each, without padding, and there are at least `len`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.len) }
    }
}
