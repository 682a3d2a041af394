package apikeys

// Reload reads the file once; see reload.Files.Check.
func (r *Ring) Reload() { r.files.Check() }
