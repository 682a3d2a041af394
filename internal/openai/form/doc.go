// Package form reads the multipart forms of requests to /v1/audio.
package form
