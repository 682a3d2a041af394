// Package compose turns the services of docker-compose.yml into plain processes
// on one machine, so that the same settings run where no container engine is,
// and so that tests can say that they work.
//
//	docker-compose.yml ──Load──▶ File ──Plan──▶ []Process ──▶ local
//
// It knows the part of the compose specification that this project's file uses.
// A container's network becomes ports of the loopback: every address service:port
// in a command or a variable is replaced by 127.0.0.1 and a port of its own, the
// published ones by the port they are published at. A volume becomes a directory.
// What only a container has (image, capabilities, file system) has no part here.
package compose
