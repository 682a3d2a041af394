package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// unpack checks an archive, extracts its files below dir, and prints its configuration.
func unpack(archive, dir string, stdout io.Writer) error {
	img, err := open(archive)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	files := mutate.Extract(img)
	if err := errors.Join(extract(files, dir), files.Close()); err != nil {
		return err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "platform %s/%s\nuser %s\n", config.OS, config.Architecture, config.Config.User)
	for _, e := range config.Config.Env {
		fmt.Fprintf(stdout, "env %s\n", e)
	}
	for _, c := range config.Config.Cmd {
		fmt.Fprintf(stdout, "cmd %s\n", c)
	}
	return nil
}

// open reads an archive both as a layout and as docker load does, and checks every
// digest. Both must contain the same image.
func open(archive string) (img v1.Image, err error) {
	dir, err := os.MkdirTemp("", "layout-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	in, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(extract(in, dir), in.Close()); err != nil {
		return nil, err
	}
	path, err := layout.FromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("%s is no image layout: %w", archive, err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		return nil, err
	}
	if err := validate.Index(index); err != nil {
		return nil, fmt.Errorf("%s: %w", archive, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	loaded, err := tarball.ImageFromPath(archive, nil)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be loaded by docker: %w", archive, err)
	}
	config, err := loaded.ConfigName()
	if err != nil {
		return nil, err
	}
	for _, m := range manifest.Manifests {
		one, err := index.Image(m.Digest)
		if err != nil {
			return nil, err
		}
		name, err := one.ConfigName()
		if err != nil {
			return nil, err
		}
		if name != config {
			return nil, fmt.Errorf("%s: the layout has image %s, docker's list %s", archive, name, config)
		}
	}
	if err := validate.Image(loaded); err != nil {
		return nil, fmt.Errorf("%s: %w", archive, err)
	}
	return loaded, nil
}

// extract unpacks an archive with the permissions of its files, and as root with their owners.
func extract(r io.Reader, dir string) error {
	tar := exec.Command("tar", "--extract", "--preserve-permissions", "--directory", dir)
	tar.Stdin = r
	if out, err := tar.CombinedOutput(); err != nil {
		return fmt.Errorf("tar: %w: %s", err, out)
	}
	return nil
}
