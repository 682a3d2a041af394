package embedetcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"google.golang.org/grpc"

	"github.com/pdmesh/pdmesh/internal/cli/sleep"
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/transport/certs"
)

// Errors of Start.
var (
	// ErrJoin means that an etcd which this program may use already serves at the client
	// address; the caller should connect to it.
	ErrJoin = errors.New("an etcd serves here already")
	// ErrPortTaken means that another server uses the client address, one that this
	// program cannot or must not use.
	ErrPortTaken = errors.New("the etcd client address is taken")
	// ErrLocked means that another process uses the data directory.
	ErrLocked = errors.New("the etcd data directory is in use")
	// ErrListen means that the client address cannot be listened on.
	ErrListen = errors.New("invalid etcd listen address")
	// ErrCertificate means that the files of Config.TLS cannot be used.
	ErrCertificate = errors.New("unusable certificate files of etcd")
)

const (
	quotaBytes   = 1 << 30
	compaction   = "5m"
	startTimeout = 60 * time.Second
	// settleTimeout is how long the data directory may stay locked, or the port unavailable, without
	// a server that answers there, before Start fails.
	settleTimeout = 5 * time.Second
	memberName    = "pdmesh"
	// unsyncedBatch is the batch interval of the backend with Unsynced, instead of etcd's
	// 100 ms: every batch writes the inner pages of the tree again. Readers see batched
	// writes, and the log has them.
	unsyncedBatch = 2 * time.Second
	// unsyncedBcryptCost is the lowest cost that bcrypt accepts.
	unsyncedBcryptCost = 4
)

// Config configures a Server.
type Config struct {
	// ListenClient is the host:port for clients, default 127.0.0.1:2379; without TLS a
	// loopback address. Port 0 selects a free port.
	ListenClient string
	// TLS has the certificate files of the client port; none: without TLS. With a CA, clients must
	// present a certificate. Other machines are served only while etcd has users.
	TLS certs.Files
	// DataDir is the data directory. It is created if necessary, readable by this user only.
	DataDir string
	Log     logrus.FieldLogger // nil: silent
	// Gateway enables etcd's JSON API on the same port as gRPC, guarded; not with TLS.
	Gateway bool
	// Prefix is the root of our keys, by which examine recognizes an etcd of ours.
	Prefix string
	// Unsynced skips the sync to disk at each write, and hashes passwords at the lowest cost. A
	// crash of the machine may lose data: for tests and benchmarks.
	Unsynced bool
	// Fatal is called with the reason when etcd has a fatal error. It must not return; otherwise
	// etcd ends the process.
	Fatal func(why string)

	// For tests: bytes of the database, 0 for quotaBytes; whether the test checks the space.
	quota       int64
	manualSpace bool
}

// Server is a running etcd.
type Server struct {
	etcd     *embed.Etcd
	grpc     atomic.Pointer[grpc.Server] // set by etcd's own goroutine
	serves   chan struct{}               // closed when grpc is set
	secure   *securePort                 // nil: without TLS
	gateway  *gateway
	lock     *os.File
	endpoint string
	quiet    *atomic.Bool
	once     sync.Once
	end      context.CancelFunc // of work; nil before it begins
	work     sync.WaitGroup
}

// Start runs an etcd and returns when it serves. It returns ErrJoin if the client address is in use
// by an etcd whose keys under the prefix are ours or missing, even if that was started at the same
// moment. If another server uses the address, it returns ErrPortTaken with a remedy. Start takes at
// most about a minute, or about ten seconds if the port is in use.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	cfg.ListenClient = cmp.Or(cfg.ListenClient, "127.0.0.1:2379")
	cfg.Prefix = cmp.Or(cfg.Prefix, schema.DefaultPrefix)
	listen, err := listenAddress(cfg.ListenClient, !cfg.TLS.None())
	if err != nil {
		return nil, err
	}
	layout, err := schema.NewLayout(cfg.Prefix)
	if err != nil {
		return nil, err
	}
	if cfg.DataDir == "" {
		return nil, errors.New("start etcd: no data directory given")
	}
	var deadline time.Time // set when the port is free: the examination before may take longer
	for {
		s, err := start(ctx, cfg, listen)
		switch {
		case err == nil:
			return s, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("start etcd: %w", ctx.Err())
		case !errors.Is(err, ErrLocked) && !errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("start etcd on %s with data in %s: %w", listen, cfg.DataDir, err)
		}
		// The port or the directory is in use, maybe by a proxy that was started at the
		// same moment: then we join it once it answers.
		verdict := examine(ctx, listen, layout)
		switch {
		case errors.Is(verdict, ErrJoin):
			return nil, verdict
		case ctx.Err() != nil:
			return nil, fmt.Errorf("start etcd: %w", ctx.Err())
		case !errors.Is(verdict, errFree) && errors.Is(err, ErrLocked):
			return nil, err
		case !errors.Is(verdict, errFree):
			return nil, verdict
		case deadline.IsZero():
			deadline = time.Now().Add(settleTimeout)
		case time.Now().After(deadline) && errors.Is(err, ErrLocked):
			return nil, err
		case time.Now().After(deadline):
			return nil, fmt.Errorf("%w: the server at %s starts and stops repeatedly; choose another --etcd-listen", ErrPortTaken, listen)
		}
		sleep.For(ctx, examinePause)
	}
}

// listenAddress checks the address to listen on.
func listenAddress(address string, secure bool) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("%w %q: write host:port, for example 127.0.0.1:2379", ErrListen, address)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.IsUnspecified() {
		return "", fmt.Errorf("%w %q: must be the IP address that clients reach", ErrListen, address)
	}
	if !ip.IsLoopback() && !secure {
		return "", fmt.Errorf("%w %q: the embedded etcd listens beyond loopback with TLS only (--etcd-listen-cert); or run your own etcd and set --etcd-endpoints", ErrListen, address)
	}
	if _, err := netip.ParseAddrPort("127.0.0.1:" + port); err != nil {
		return "", fmt.Errorf("%w %q: the port must be a number from 0 to 65535", ErrListen, address)
	}
	return net.JoinHostPort(ip.String(), port), nil
}

// start makes one attempt to run the etcd.
func start(ctx context.Context, cfg Config, listen string) (*Server, error) {
	lock, err := lockDir(cfg.DataDir)
	if err != nil {
		return nil, err
	}
	s := &Server{lock: lock, quiet: &atomic.Bool{}, serves: make(chan struct{})}
	if err = markFirstStart(cfg.DataDir); err == nil {
		err = s.run(ctx, cfg, listen)
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// run starts the etcd and waits until clients are served.
func (s *Server) run(ctx context.Context, cfg Config, listen string) error {
	ec, err := s.configure(cfg, listen)
	if err != nil {
		return err
	}
	server, err := embed.StartEtcd(ec)
	if err != nil {
		return err
	}
	s.etcd = server
	s.endpoint = server.Clients[0].Addr().String()
	timeout := time.NewTimer(startTimeout)
	defer timeout.Stop()
	if err := s.await(ctx, server.Server.ReadyNotify(), timeout); err != nil {
		return err
	}
	_ = os.Remove(filepath.Join(cfg.DataDir, firstStart)) // usually there is none
	work, end := context.WithCancel(context.WithoutCancel(ctx))
	s.end = end
	space := &space{server: server.Server, dir: cfg.DataDir, quota: ec.QuotaBackendBytes, log: etcd.LogOrDiscard(cfg.Log), diskSpace: diskSpace, every: checkInterval}
	if !cfg.manualSpace {
		s.work.Go(func() { space.run(work) })
	}
	if s.secure == nil {
		return s.gateway.connect(s.endpoint)
	}
	if err := s.await(ctx, s.serves, timeout); err != nil {
		return err
	}
	s.endpoint = s.secure.address
	s.secure.serve(work, s.grpc.Load(), server.Server.AuthStore().IsAuthEnabled, &s.work)
	return nil
}

// configure returns the configuration of etcd, and opens the client port if it has TLS.
func (s *Server) configure(cfg Config, listen string) (*embed.Config, error) {
	ec := embed.NewConfig()
	ec.Name = memberName
	ec.Dir = cfg.DataDir
	// A single member has no peers, but requires a peer listener. Any free port will do, also
	// after a restart.
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	client := url.URL{Scheme: "http", Host: listen}
	if !cfg.TLS.None() {
		var err error
		if s.secure, err = openSecurePort(listen, cfg.TLS, etcd.LogOrDiscard(cfg.Log)); err != nil {
			return nil, err
		}
		client.Host = "127.0.0.1:0" // required, but calls to it are refused
		ec.GRPCAdditionalServerOptions = s.secure.options()
	}
	ec.ListenPeerUrls, ec.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	ec.ListenClientUrls, ec.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	ec.InitialCluster = ec.InitialClusterFromName(memberName)
	ec.AutoCompactionMode = embed.CompactorModePeriodic
	ec.AutoCompactionRetention = compaction // off by default, and then the disk fills up
	// Checkpoints keep TTLs across restarts of etcd. Those above 5 min are saved every 5 min.
	gates, _ := ec.ServerFeatureGate.(interface{ Set(string) error })
	if err := gates.Set("LeaseCheckpoint=true,LeaseCheckpointPersist=true"); err != nil {
		return nil, err
	}
	ec.QuotaBackendBytes = cmp.Or(cfg.quota, quotaBytes)
	ec.UnsafeNoFsync = cfg.Unsynced
	if cfg.Unsynced {
		ec.BackendBatchInterval = unsyncedBatch
		ec.BcryptCost = unsyncedBcryptCost
	}
	ec.EnablePprof = false
	// No web page may read an answer of this server. An empty list would allow all origins.
	ec.CORS = map[string]struct{}{"https://nobody.invalid": {}}
	// The gateway of etcd cannot be guarded; type gateway replaces it.
	ec.EnableGRPCGateway = false
	s.gateway = &gateway{on: cfg.Gateway && s.secure == nil}
	ec.UserHandlers = s.gateway.handlers()
	ec.ServiceRegister = func(g *grpc.Server) { s.grpc.Store(g); close(s.serves) }
	ec.ZapLoggerBuilder = embed.NewZapLoggerBuilder(s.logger(cfg.Log, cfg.Fatal))
	return ec, nil
}

// await waits for a step of the start.
func (s *Server) await(ctx context.Context, step <-chan struct{}, timeout *time.Timer) error {
	select {
	case <-step:
		return nil
	case err := <-s.etcd.Err():
		return fmt.Errorf("it stopped immediately: %w", err)
	case <-timeout.C:
		return fmt.Errorf("not ready within %s; is the disk very slow?", startTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Endpoint returns the host:port for clients.
func (s *Server) Endpoint() string { return s.endpoint }

// Err returns a channel that receives an error if etcd stops by itself.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Close stops the etcd and waits for it. It closes the connections of clients, because their
// watches do not end by themselves and etcd would wait seconds for them.
func (s *Server) Close() {
	s.once.Do(func() {
		s.quiet.Store(true)
		if s.end != nil {
			s.end()
		}
		if s.gateway != nil {
			s.gateway.close()
		}
		if g := s.grpc.Load(); g != nil {
			g.Stop()
		}
		if s.secure != nil {
			_ = s.secure.Close() // it may be closed already
		}
		s.work.Wait()
		if s.etcd != nil {
			s.etcd.Close()
		}
		_ = s.lock.Close() // nothing was written; closing releases the lock
	})
}

// firstStart is an empty file in the data directory from the first start until etcd serves.
const firstStart = "first-start"

// Unfinished reports whether the first start in a data directory was cut off, for example by a full
// disk. etcd would not start with such files. They hold no data, which etcd stores only after the
// log entry that adds the member to the cluster.
func Unfinished(dir string) bool {
	if _, err := os.Stat(filepath.Join(dir, firstStart)); err != nil {
		return false
	}
	log, err := wal.OpenForRead(nil, filepath.Join(dir, "member", "wal"), &walpb.Snapshot{})
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer func() { _ = log.Close() }()
	_, _, entries, err := log.ReadAll()
	return err == nil && len(entries) == 0
}

// markFirstStart removes the files of a first start that was cut off, and marks the start in a
// directory without any.
func markFirstStart(dir string) error {
	member := filepath.Join(dir, "member")
	if Unfinished(dir) {
		if err := os.RemoveAll(member); err != nil {
			return fmt.Errorf("remove the files of a start that was cut off: %w", err)
		}
	}
	if _, err := os.Stat(member); !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, firstStart), nil, 0o600); err != nil {
		return fmt.Errorf("write to the etcd data directory: %w", err)
	}
	return nil
}

// lockDir creates the data directory and locks it. Without the lock, etcd would wait without a
// message until another process releases the directory.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the etcd data directory: %w", err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the etcd data directory: %w", err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = fmt.Errorf("%w: %s belongs to another running process; stop it, or choose another --etcd-data-dir", ErrLocked, dir)
	} else if err != nil {
		err = fmt.Errorf("lock the etcd data directory %s: %w", dir, err)
	} else if err = f.Chmod(0o700); err != nil {
		err = fmt.Errorf("make the etcd data directory private: %w", err)
	}
	if err != nil {
		_ = f.Close() // the first error is the one to report
		return nil, err
	}
	return f, nil
}
