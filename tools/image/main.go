// Command image makes the container image of a release, and takes one apart again,
// without a container engine. The Dockerfile describes the same image; a test compares
// the two.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"
)

const usage = `usage:
  image build --bin DIR --arch amd64 --out FILE [--tag pdmesh:latest]... [--doc FILE]...
        [--version V] [--revision COMMIT] [--created SECONDS]
  image unpack FILE DIR

build writes an archive of an OCI image layout that docker load and podman load
take too. unpack checks such an archive, both ways of reading it and every digest,
lays its files out below DIR and prints how it is run.
`

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	switch args[0] {
	case "build":
		var r recipe
		var created int64
		fs := flag.NewFlagSet("build", flag.ContinueOnError)
		fs.StringVar(&r.bin, "bin", "", "directory of the programs")
		fs.StringVar(&r.arch, "arch", "", "amd64 or arm64")
		fs.StringVar(&r.out, "out", "", "the archive to write")
		fs.StringVar(&r.version, "version", "", "the release")
		fs.StringVar(&r.revision, "revision", "", "the commit")
		fs.Int64Var(&created, "created", 0, "when, in seconds since 1970")
		fs.Func("tag", "a name, as in pdmesh:latest", func(v string) error { r.tags = append(r.tags, v); return nil })
		fs.Func("doc", "a file for /usr/share/doc/pdmesh", func(v string) error { r.docs = append(r.docs, v); return nil })
		if err := fs.Parse(args[1:]); err != nil {
			return err
		}
		if r.bin == "" || r.arch == "" || r.out == "" || len(r.tags) == 0 || fs.NArg() > 0 {
			return errors.New(usage)
		}
		r.created = time.Unix(created, 0).UTC()
		return r.write()
	case "unpack":
		if len(args) != 3 {
			return errors.New(usage)
		}
		return unpack(args[1], args[2], stdout)
	default:
		return errors.New(usage)
	}
}
