package utf8scan

import "unicode/utf8"

// Valid tells whether all of b is UTF-8, exactly as utf8.Valid does.
func Valid(b []byte) bool { return utf8.Valid(b[blocks(b):]) }
