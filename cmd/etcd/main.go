// Command etcd is the etcd server, built from the library that the proxy embeds,
// with the command line of etcd. The demo runs the members of a cluster with it,
// so that no other program needs to be installed.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
