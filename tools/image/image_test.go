package main

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// built makes an image whose programs are short texts, and returns its path.
func built(t *testing.T, name string) string {
	t.Helper()
	bin, out := t.TempDir(), filepath.Join(t.TempDir(), name)
	for _, p := range programs {
		if err := os.WriteFile(filepath.Join(bin, p), []byte("this is "+p), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	licence := filepath.Join(bin, "LICENSE")
	if err := os.WriteFile(licence, []byte("take it"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := recipe{
		bin: bin, arch: "arm64", out: out, version: "1.2.3", revision: "abc",
		tags: []string{"pdmesh:latest", "pdmesh:1.2.3"}, docs: []string{licence}, created: time.Unix(1700000000, 0).UTC(),
	}
	if err := r.write(); err != nil {
		t.Fatal(err)
	}
	return out
}

func content(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestImageIsBuiltAndUnpacked(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var said bytes.Buffer
	if err := unpack(built(t, "image.tar"), dir, &said); err != nil {
		t.Fatal(err)
	}
	for _, p := range programs {
		path := filepath.Join(dir, "usr/local/bin", p)
		if got := content(t, path); got != "this is "+p {
			t.Errorf("%s: %q", p, got)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", p, info, err)
		}
	}
	for name, target := range links {
		if got := content(t, filepath.Join(dir, "usr/local/bin", name)); got != "this is "+target {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := content(t, filepath.Join(dir, "usr/share/doc/pdmesh/LICENSE")); got != "take it" {
		t.Errorf("licence: %q", got)
	}
	if info, err := os.Stat(filepath.Join(dir, "tmp")); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o777 {
		t.Errorf("/tmp: %v, %v", info, err)
	}
	if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM([]byte(content(t, filepath.Join(dir, "etc/ssl/certs/ca-certificates.crt")))) {
		t.Error("no certificate authority is in the image")
	}
	if want := "platform linux/arm64\nuser 65532:65532\n"; !strings.HasPrefix(said.String(), want) {
		t.Errorf("said %q, want %q first", &said, want)
	}
}

func TestSameInputMakesTheSameImage(t *testing.T) {
	t.Parallel()
	if content(t, built(t, "a.tar")) != content(t, built(t, "b.tar")) {
		t.Error("two images of the same programs differ")
	}
}

// unpack detects a changed byte.
func TestUnpackRefusesDamage(t *testing.T) {
	t.Parallel()
	path := built(t, "image.tar")
	raw := []byte(content(t, path))
	at := bytes.Index(raw, []byte(`"architecture":"arm64"`))
	if at < 0 {
		t.Fatal("the archive has no configuration that can be read")
	}
	raw[at+len(`"architecture":"`)] = 'A'
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unpack(path, t.TempDir(), &bytes.Buffer{}); err == nil {
		t.Error("a damaged image was unpacked")
	}
}

// The Dockerfile and the configuration agree.
func TestDockerfile_SameImage(t *testing.T) {
	t.Parallel()
	dockerfile := content(t, "../../Dockerfile")
	_, last, ok := strings.Cut(dockerfile, "\nFROM gcr.io/")
	if !ok {
		t.Fatal("the Dockerfile has no last stage")
	}
	config := new(recipe).config()
	for _, m := range regexp.MustCompile(`(?m)^ENV (.*)$`).FindAllStringSubmatch(last, -1) {
		for _, e := range strings.Fields(m[1]) {
			if !slices.Contains(config.Env, e) {
				t.Errorf("the image does not set %s", e)
			}
		}
	}
	for _, want := range []string{
		`CMD ["` + strings.Join(config.Cmd, `","`) + `"]`, "USER nonroot",
		"COPY --from=build /out/bin/ /usr/local/bin/",
	} {
		if !strings.Contains(last, want+"\n") {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
	for port := range config.ExposedPorts {
		if want := "EXPOSE " + strings.TrimSuffix(port, "/tcp") + "\n"; !strings.Contains(last, want) {
			t.Errorf("the Dockerfile has no %q", want)
		}
	}
}
