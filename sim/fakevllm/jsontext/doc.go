// Package jsontext appends texts and numbers as vLLM writes them into JSON.
package jsontext
