package certs

// Check reads the files once; see reload.Files.Check.
func (s *Source) Check() { s.files.Check() }
