package instance

// Document is a setting of the fleet that applies to more than one instance, such as the limits
// of an API key. Its reader decodes the value.
type Document struct {
	Key      // the folder and the name
	Value    []byte
	Revision int64 // mod_revision of its key
}

// Documents are all documents, ordered by folder and name. They are immutable.
type Documents struct{ List []Document }

// In returns the documents in a folder, by name. A nil Documents has none.
func (d *Documents) In(folder Role) []Document {
	if d == nil {
		return nil
	}
	var in []Document
	for _, one := range d.List {
		if one.Role == folder {
			in = append(in, one)
		}
	}
	return in
}
