package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// recipe has the contents and the names of an image.
type recipe struct {
	bin, arch, out    string
	version, revision string
	tags, docs        []string
	created           time.Time
}

func (r *recipe) image() (v1.Image, error) {
	bottom, err := base(r.created)
	if err != nil {
		return nil, err
	}
	top, err := payload(r.bin, r.docs, r.created)
	if err != nil {
		return nil, err
	}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, l := range []struct {
		content []byte
		by      string
	}{{bottom, "users, certificates, directories"}, {top, "programs"}} {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(l.content)), nil
		}, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		history := v1.History{Created: v1.Time{Time: r.created}, CreatedBy: l.by}
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: history, MediaType: types.OCILayer}); err != nil {
			return nil, err
		}
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", r.arch, v1.Time{Time: r.created}
	config.Config = r.config()
	return mutate.ConfigFile(img, config)
}

// config returns the configuration with which the image runs.
func (r *recipe) config() v1.Config {
	return v1.Config{
		User: fmt.Sprintf("%d:%[1]d", nonroot),
		Env: []string{
			"PATH=/usr/local/bin",
			"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
			"XDG_STATE_HOME=/var/lib", "PD_HOST=0.0.0.0", "PD_SHUTDOWN_DELAY=5s",
		},
		Cmd:          []string{"pdmesh-proxy"},
		ExposedPorts: map[string]struct{}{"8000/tcp": {}},
		WorkingDir:   "/home/nonroot",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "pdmesh",
			"org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source":   "https://github.com/pdmesh/pdmesh",
			"org.opencontainers.image.version":  r.version,
			"org.opencontainers.image.revision": r.revision,
		},
	}
}

// write writes the archive: an OCI image layout, and the manifest.json of
// docker save, for container engines that do not read layouts.
func (r *recipe) write() (err error) {
	img, err := r.image()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(r.out), "image-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	var names []string
	for _, tag := range r.tags {
		repository, label, ok := strings.Cut(tag, ":")
		if !ok {
			return fmt.Errorf("--tag %q: use NAME:TAG", tag)
		}
		full := "docker.io/library/" + repository + ":" + label
		names = append(names, tag)
		if err := index.AppendImage(img,
			layout.WithPlatform(v1.Platform{OS: "linux", Architecture: r.arch}),
			layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": label, "io.containerd.image.name": full})); err != nil {
			return err
		}
	}
	list, err := dockerList(img, names)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "manifest.json"), list, 0o600); err != nil {
		return err
	}
	out, err := os.Create(r.out)
	if err != nil {
		return err
	}
	return errors.Join(pack(out, dir, r.created), out.Close())
}

func dockerList(img v1.Image, names []string) ([]byte, error) {
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	config, err := img.ConfigName()
	if err != nil {
		return nil, err
	}
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	var paths []string
	for _, l := range layers {
		digest, err := l.Digest()
		if err != nil {
			return nil, err
		}
		paths = append(paths, blob(digest))
	}
	return json.Marshal([]map[string]any{{"Config": blob(config), "RepoTags": names, "Layers": paths}})
}

// pack writes the files below dir in lexical order, all with the time when and owned by root.
func pack(w io.Writer, dir string, when time.Time) error {
	r := &rootfs{out: tar.NewWriter(w), when: when}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			r.dir(name, 0o755, 0)
			return r.err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		r.file(name, 0o644, content)
		return r.err
	})
	return errors.Join(err, r.out.Close())
}
