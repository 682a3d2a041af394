package openai

import "bytes"

// Media tells whether the messages hold parts that are no text: images, video, sound,
// files, or their embeddings. Text is looked through for brackets only, which there
// are few of in it.
func (r *Request) Media() bool {
	if r.Kind == Completion || r.Kind == Other {
		return false
	}
	b := r.Prompt()
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], '[')
		if i < 0 {
			return false
		}
		from += i + 1
		if isContent(b[:from-1]) && mediaIn(b[from-1:]) {
			return true
		}
	}
}

// isContent tells that what stands in front of a value is the name "content". Within
// text the quotes of such a name are escaped.
func isContent(before []byte) bool {
	before = bytes.TrimRight(before, " \t\r\n")
	before, ok := bytes.CutSuffix(before, []byte{':'})
	return ok && bytes.HasSuffix(bytes.TrimRight(before, " \t\r\n"), []byte(`"content"`))
}

// mediaIn tells whether an array that begins there holds such a part.
func mediaIn(array []byte) bool {
	found := false
	eachObject(array, func(part []byte) {
		m, ok := findMember(part, 0, "type")
		if !ok {
			return
		}
		switch string(part[m.val:m.end]) {
		case `"image_url"`, `"video_url"`, `"audio_url"`, `"input_audio"`, `"image_pil"`, `"input_image"`, `"input_video"`, `"input_file"`,
			`"image"`, `"document"`, `"file"`, `"image_embeds"`, `"video_embeds"`, `"audio_embeds"`:
			found = true
		}
	})
	return found
}
