// Names of the former one package, for callers that are not changed yet.
//
//nolint:gochecknoglobals // it goes with the last of them
package discovery

import (
	"github.com/pdmesh/pdmesh/internal/discovery/etcd"
	"github.com/pdmesh/pdmesh/internal/discovery/lease"
	"github.com/pdmesh/pdmesh/internal/discovery/schema"
	"github.com/pdmesh/pdmesh/internal/discovery/store"
	"github.com/pdmesh/pdmesh/internal/discovery/watch"
)

type (
	AddOutcome         = store.AddOutcome
	AuditEntry         = store.AuditEntry
	Carried            = store.Carried
	ClientConfig       = etcd.Config
	Digest             = schema.Digest
	EtcdRole           = schema.EtcdRole
	FlagsOutcome       = store.FlagsOutcome
	Grant              = schema.Grant
	Intended           = store.Intended
	Kept               = watch.Kept
	Layout             = schema.Layout
	LoadCount          = schema.LoadCount
	LoadEntry          = schema.LoadEntry
	LoadSource         = lease.LoadSource
	Loads              = lease.Loads
	MoveKind           = store.MoveKind
	MoveOutcome        = store.MoveOutcome
	Override           = schema.Override
	Past               = store.Past
	PastKind           = store.PastKind
	PendingAdd         = schema.PendingAdd
	Phase              = lease.Phase
	Presence           = lease.Presence
	PresenceOptions    = lease.PresenceOptions
	Prober             = watch.Prober
	ProxyLoad          = lease.ProxyLoad
	ProxyPresence      = lease.ProxyPresence
	RawKey             = store.RawKey
	Registrar          = lease.Registrar
	RegistrarOptions   = lease.RegistrarOptions
	RegistrationStatus = lease.Status
	RejectedError      = schema.RejectedError
	Removal            = store.Removal
	Standing           = store.Standing
	Store              = store.Store
	Testimony          = store.Testimony
	Verification       = watch.Verification
	VerifiedFacts      = watch.VerifiedFacts
	Wait               = watch.Wait
	Watcher            = watch.Watcher
	WatcherOptions     = watch.Options
	WatcherState       = watch.State
	WatcherStatus      = watch.Status
	Wish               = store.Wish
	Writer             = watch.Writer
)

const (
	Added            = store.Added
	AlreadyThere     = store.AlreadyThere
	Cold             = watch.Cold
	Conflict         = lease.Conflict
	DefaultPrefix    = schema.DefaultPrefix
	DefaultTTL       = schema.DefaultTTL
	Idle             = lease.Idle
	Listing          = watch.Listing
	Live             = watch.Live
	MoveDiffers      = store.MoveDiffers
	MoveMoot         = store.MoveMoot
	MoveOverride     = store.MoveOverride
	MovePending      = store.MovePending
	MoveRecord       = store.MoveRecord
	MoveSame         = store.MoveSame
	MoveWritten      = store.MoveWritten
	Overridden       = lease.Overridden
	PastOverride     = store.PastOverride
	PastPending      = store.PastPending
	PastRecord       = store.PastRecord
	RefreshLoad      = lease.RefreshLoad
	Registered       = lease.Registered
	Registering      = lease.Registering
	RoleAgentDecode  = schema.RoleAgentDecode
	RoleAgentPrefill = schema.RoleAgentPrefill
	RoleOperator     = schema.RoleOperator
	RoleProxy        = schema.RoleProxy
	SchemaVersion    = schema.Version
	Stale            = watch.Stale
	StaticPresent    = lease.StaticPresent
	Suspect          = watch.Suspect
	Unknown          = lease.Unknown
	Waiting          = store.Waiting
)

var (
	Build            = watch.Build
	CheckSchema      = etcd.CheckSchema
	CheckSchemaValue = schema.CheckVersion
	DecodeDigest     = schema.DecodeDigest
	DecodeOverride   = schema.DecodeOverride
	DecodePending    = schema.DecodePending
	DecodeRecord     = schema.DecodeRecord
	Dial             = etcd.Dial
	EncodeRecord     = schema.EncodeRecord
	ErrBusy          = store.ErrBusy
	ErrDigest        = schema.ErrDigest
	ErrEndpoint      = etcd.ErrEndpoint
	ErrIntent        = store.ErrIntent
	ErrPrefix        = schema.ErrPrefix
	ErrSchemaForeign = schema.ErrForeign
	ErrSchemaNewer   = schema.ErrNewer
	ErrTooLarge      = schema.ErrTooLarge
	ErrUnreachable   = etcd.ErrUnreachable
	EtcdRoles        = schema.EtcdRoles
	NewLayout        = schema.NewLayout
	NewLoads         = lease.NewLoads
	NewPresence      = lease.NewPresence
	NewRegistrar     = lease.NewRegistrar
	NewStore         = store.New
	NewWatcher       = watch.New
	Ping             = etcd.Ping
	WatcherStates    = watch.States
	ZapLogger        = etcd.ZapLogger
)
