package pdctl

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdmesh/pdmesh/internal/cli"
	"github.com/pdmesh/pdmesh/internal/cli/version"
	"github.com/pdmesh/pdmesh/internal/pdctl/diagnose"
	"github.com/pdmesh/pdmesh/internal/pdctl/session"
)

const debugHelp = `debug writes an archive (tar.gz) for a report of a problem: the output of status, list,
doctor and history, and of each proxy in etcd /status, /readyz, /metrics, its settings with
secrets masked, and the last 256 KiB of its log. The file notes.txt names what could not be
read.

Settings and log need an admin key with the right "read" (--admin-key, or ADMIN_API_KEY),
which is sent to the addresses of the proxies in etcd. Without it they are left out. --proxy
names proxies instead of those in etcd. What is missing, and why, is also printed on stderr.

The archive has addresses, names of models, labels, reasons and log lines, but no prompts, no
answers and no keys. Review it before you share it.`

func debugCommand(s *session.Session) *cobra.Command {
	var file, key string
	var proxies []string
	cmd := &cobra.Command{
		Use: "debug", Short: "write an archive for a report of a problem", Long: debugHelp,
		Example: "  pdctl debug\n  pdctl debug -f report.tar.gz --proxy http://10.0.0.1:8000\n  pdctl debug -f - > debug.tar.gz",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := s.Out.TextOnly("it writes a file"); err != nil {
			return err
		}
		file = cmp.Or(file, "pdctl-debug-"+time.Now().UTC().Format("20060102T150405Z")+".tar.gz")
		b := bundle{s: s, at: time.Now()}
		b.commands(cmd)
		if err := b.proxies(cmd.Context(), proxies, key); err != nil {
			return err
		}
		if cmd.Context().Err() != nil {
			return errors.New("interrupted; no archive was written")
		}
		summary := fmt.Sprintf("%s: %s, %s", file, cli.Count(len(b.files), "file"), cli.Count(strings.Count(b.notes.String(), "\n"), "note"))
		if file == "-" {
			fmt.Fprintln(s.Out.Stderr, b.notes.String()+summary)
			return b.write(s.Out.Stdout)
		}
		if err := b.save(file); err != nil {
			return err
		}
		fmt.Fprint(s.Out.Stderr, b.notes.String())
		return s.Out.Println(summary)
	}
	cmd.Flags().StringVarP(&file, "filename", "f", "", "file to write, - for standard output (default: pdctl-debug-TIME.tar.gz in the working directory)")
	cmd.Flags().StringVar(&key, "admin-key", "", "admin key of the proxies; better set ADMIN_API_KEY")
	cmd.Flags().StringArrayVar(&proxies, "proxy", nil, "URL of a proxy, or of its --admin-listen; can be repeated (default: the proxies in etcd)")
	return cmd
}

// bundle collects the files of an archive.
type bundle struct {
	s     *session.Session
	at    time.Time
	files []bundled
	notes strings.Builder
}

type bundled struct {
	name string
	text []byte
}

func (b *bundle) add(name string, text []byte, err error) {
	if err != nil {
		fmt.Fprintf(&b.notes, "%s: %s\n", name, strings.ReplaceAll(session.WithoutHint(err), "\n", " "))
	}
	if len(text) > 0 {
		b.files = append(b.files, bundled{name, text})
	}
}

// commands runs other commands with the connection flags of cmd, and adds their output.
func (b *bundle) commands(cmd *cobra.Command) {
	var flags []string
	cmd.InheritedFlags().VisitAll(func(f *pflag.Flag) { // Visit would skip them: this set has parsed none
		if f.Changed && f.Name != "output" {
			flags = append(flags, "--"+f.Name+"="+f.Value.String())
		}
	})
	for _, name := range []string{"status", "list", "doctor", "history"} {
		var out, errs bytes.Buffer
		args := append([]string{name, "-o", "json"}, flags...)
		var err error
		switch code := Run(cmd.Context(), args, &out, &errs, b.s.LookupEnv); {
		case code == diagnose.ExitFindings:
			err = fmt.Errorf("doctor found problems: %s", errs.String())
		case code != 0:
			err = fmt.Errorf("exit code %d: %s", code, errs.String())
		}
		b.add(name+".json", out.Bytes(), err)
	}
}

// proxies adds the answers of the proxies. It returns only errors of usage; others become notes.
func (b *bundle) proxies(ctx context.Context, urls []string, key string) error {
	if len(urls) == 0 {
		var err error
		urls, err = b.s.ProxyURLs(ctx)
		b.add("proxies", nil, err)
	}
	key, needs := b.s.AdminKey(key)
	for _, url := range urls {
		_, host, _ := strings.Cut(url, "://")
		folder := "proxies/" + unsafeName.ReplaceAllString(host, "_") + "/"
		for _, one := range []struct{ path, file string }{{"/status", "status.json"}, {"/readyz", "readyz.json"}, {"/metrics", "metrics.txt"}, {"/config", "config.yaml"}, {"/log", "log.txt"}} {
			header := http.Header{}
			if one.path == "/config" || one.path == "/log" {
				if needs != nil {
					b.add(folder+one.file, nil, needs)
					continue
				}
				header.Set("X-Api-Key", key)
			}
			text, err := b.s.AskProxy(ctx, url, one.path, nil, header, nil)
			if cli.IsWrong(err) {
				return err
			}
			b.add(folder+one.file, text, err)
		}
	}
	return nil
}

// unsafeName matches characters that must not be in the names of the archive's folders.
var unsafeName = regexp.MustCompile(`[^A-Za-z0-9.:_-]`)

// userInfo matches the user and the password of a URL.
var userInfo = regexp.MustCompile(`://[^/@\s"']+@`)

// save writes the archive to a new file, readable by its owner only.
func (b *bundle) save(path string) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write the archive: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return b.write(f)
}

// write writes the archive.
func (b *bundle) write(w io.Writer) error {
	zip := gzip.NewWriter(w)
	out := tar.NewWriter(zip)
	notes := fmt.Sprintf("pdctl %s, %s\n%s", version.String(), b.at.UTC().Format(time.RFC3339), b.notes.String())
	for _, one := range append(b.files, bundled{"notes.txt", []byte(notes)}) {
		text := userInfo.ReplaceAll(one.text, []byte("://***@"))
		if err := out.WriteHeader(&tar.Header{Name: "pdctl-debug/" + one.name, Mode: 0o600, Size: int64(len(text)), ModTime: b.at}); err != nil {
			return err
		}
		if _, err := io.Copy(out, bytes.NewReader(text)); err != nil {
			return err
		}
	}
	return errors.Join(out.Close(), zip.Close())
}
