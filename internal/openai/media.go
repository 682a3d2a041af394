package openai

// Media tells whether the messages hold parts that are no text: images, video, sound,
// files, or their embeddings.
func (r *Request) Media() bool {
	if r.Kind == Completion || r.Kind == Other {
		return false
	}
	b := r.Prompt()
	if len(b) == 0 || b[0] != '[' {
		return false
	}
	found := false
	look := func(m member) error {
		if b[m.val] == '[' && string(unquote(b[m.key:m.keyEnd])) == "content" {
			found = found || mediaIn(b[m.val:m.end])
		}
		return nil
	}
	s := scanner{b: b}
	for i := s.space(1); i < len(b) && b[i] != ']' && !found; {
		var end int
		var err error
		if b[i] == '{' {
			end, err = s.members(i, 0, look)
		} else {
			end, err = s.value(i, 0)
		}
		if err != nil {
			return false
		}
		if i = s.space(end); i < len(b) && b[i] == ',' {
			i = s.space(i + 1)
		}
	}
	return found
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
