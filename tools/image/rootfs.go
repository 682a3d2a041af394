package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// programs are the programs of the image, as in the Dockerfile. links are their short names.
var (
	programs = []string{"pdmesh-proxy", "pdmesh-agent", "pdctl", "fakevllm"}
	links    = map[string]string{"proxy": "pdmesh-proxy", "agent": "pdmesh-agent"}
)

// nonroot is the id of the user that runs the programs, as in distroless
// images.
const nonroot = 65532

// rootfs writes a layer. Everything in it has the time of the commit, so that the
// same commit makes the same image.
type rootfs struct {
	out  *tar.Writer
	when time.Time
	err  error
}

func (r *rootfs) add(h tar.Header, content []byte) {
	if r.err != nil {
		return
	}
	h.ModTime, h.Size, h.Format = r.when, int64(len(content)), tar.FormatPAX
	if r.err = r.out.WriteHeader(&h); r.err == nil {
		_, r.err = r.out.Write(content)
	}
}

func (r *rootfs) dir(name string, mode int64, owner int) {
	r.add(tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode, Uid: owner, Gid: owner}, nil)
}

func (r *rootfs) file(name string, mode int64, content []byte) {
	r.add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, content)
}

// base returns the layer below the programs: users, mount points of a container engine, a
// directory for temporary files, TLS root certificates, and a directory for the data of an
// embedded etcd.
func base(when time.Time) ([]byte, error) {
	return layer(when, func(r *rootfs) {
		for _, d := range []string{"dev", "proc", "sys", "run", "etc", "etc/ssl", "etc/ssl/certs", "home", "usr", "usr/local", "usr/local/bin", "usr/share", "usr/share/doc", "usr/share/doc/pdmesh", "var", "var/lib"} {
			r.dir(d, 0o755, 0)
		}
		r.dir("tmp", 0o1777, 0)
		r.dir("home/nonroot", 0o700, nonroot)
		r.dir("var/lib/pdmesh", 0o755, nonroot)
		r.file("etc/passwd", 0o644, fmt.Appendf(nil, "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:%d:%[1]d:nonroot:/home/nonroot:/sbin/nologin\n", nonroot))
		r.file("etc/group", 0o644, fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", nonroot))
		r.file("etc/ssl/certs/ca-certificates.crt", 0o644, roots())
	})
}

// roots returns Mozilla's certificate authorities as PEM. It omits those trusted
// only for certain dates or names, since PEM cannot express such constraints.
func roots() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer returns no errors
	}
	return out.Bytes()
}

// payload returns the layer with the programs and their documents.
func payload(bin string, docs []string, when time.Time) ([]byte, error) {
	return layer(when, func(r *rootfs) {
		put := func(path, name string, mode int64) {
			content, err := os.ReadFile(path)
			if err != nil && r.err == nil {
				r.err = err
			}
			r.file(name, mode, content)
		}
		for _, p := range programs {
			put(filepath.Join(bin, p), "usr/local/bin/"+p, 0o755)
		}
		for _, name := range slices.Sorted(maps.Keys(links)) {
			r.add(tar.Header{Typeflag: tar.TypeSymlink, Name: "usr/local/bin/" + name, Linkname: links[name], Mode: 0o777}, nil)
		}
		for _, d := range docs {
			put(d, "usr/share/doc/pdmesh/"+filepath.Base(d), 0o644)
		}
	})
}

func layer(when time.Time, fill func(*rootfs)) ([]byte, error) {
	var buf bytes.Buffer
	r := &rootfs{out: tar.NewWriter(&buf), when: when}
	fill(r)
	if r.err != nil {
		return nil, r.err
	}
	if err := r.out.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
