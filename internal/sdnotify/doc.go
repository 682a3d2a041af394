// Package sdnotify tells systemd how a service is: READY=1, STOPPING=1,
// STATUS=..., WATCHDOG=1, as datagrams to the socket that $NOTIFY_SOCKET names
// (sd_notify(3)). Without that variable everything here does nothing, so
// programs call it always.
//
// The watchdog is fed by Run, at half of $WATCHDOG_USEC, and only while the
// caller's check passes: a process that hangs is restarted by systemd.
package sdnotify
