use std::path::Path;

pub fn generate(dir: &Path, progress: &mut dyn FnMut(usize, usize)) -> Result<(), std::io::Error> {
    std::fs::create_dir_all(dir.join("images/train"))?;
    progress(1, 1);
    Ok(())
}
