// Package form reads the forms of requests to /v1/audio.
package form
