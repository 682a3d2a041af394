package http1

import (
	"strings"
	"testing"
)

// BenchmarkFields reads the fields of a client's request and of an engine's answer,
// without a cache and repeated with one.
func BenchmarkFields(b *testing.B) {
	request := "host: proxy:8000\r\naccept: application/json\r\nconnection: keep-alive\r\nuser-agent: OpenAI/Python 2.8.1\r\n" +
		"x-stainless-lang: python\r\nx-stainless-package-version: 2.8.1\r\nx-stainless-os: Linux\r\nx-stainless-arch: x64\r\n" +
		"x-stainless-runtime: CPython\r\nx-stainless-runtime-version: 3.12.3\r\nx-stainless-async: async:asyncio\r\n" +
		"authorization: Bearer " + strings.Repeat("k", 40) + "\r\nx-stainless-retry-count: 0\r\nx-stainless-read-timeout: 600\r\n" +
		"content-length: 2345\r\ncontent-type: application/json\r\naccept-encoding: gzip, deflate\r\n"
	for name, fields := range map[string]string{"request": request, "answer": usualFields} {
		b.Run(name+"/new", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := parseFields([]byte(fields), false); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/again", func(b *testing.B) {
			b.ReportAllocs()
			var c HeadCache
			for b.Loop() {
				if _, err := c.Parse([]byte(fields), false); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
