// Command etcd is the etcd server of the library that the proxy embeds, with its
// own command line. scripts/fleet runs the members of a cluster with it, by the
// arguments that docker-compose.yml has for etcd's own image, so that no other
// program needs to be installed.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
