package server

import "time"

// Limits of the API. Each has a test.
const (
	// payloadBytesMax bounds a JSON document: a saga's input, an output given by a person.
	payloadBytesMax = 256 << 10
	// idBytesMax bounds a saga's id.
	idBytesMax = 255
	// labelBytesMax bounds a label's key and its value.
	labelBytesMax = 63
	// actorBytesMax bounds who the caller says they are.
	actorBytesMax = 128
	// textBytesMax bounds a reason or a piece of evidence.
	textBytesMax = 4096

	// readBytesMax bounds a request message after decompression, for calls that carry documents.
	readBytesMax = 1 << 20
	// readSmallBytesMax bounds those of all other calls.
	readSmallBytesMax = 64 << 10
	// bodyBytesMax bounds what one HTTP request may send in all.
	bodyBytesMax = 4 << 20
	// sendBytesMax bounds a response message.
	sendBytesMax = 16 << 20
	// headerBytesMax bounds a request's headers.
	headerBytesMax = 32 << 10
	// pageBytesMax ends a page of history early; a page has at least one entry.
	pageBytesMax = 2 << 20

	pageSizeDefault = 100
	pageSizeMax     = 1000
	pageTokenMax    = 1024

	waitDefault = 30 * time.Second
	waitMax     = 60 * time.Second

	// watchesMax bounds open watches and waits together, unless the configuration says otherwise.
	watchesMax = 4096
	// streamsMax bounds the calls at the same time on one HTTP/2 connection.
	streamsMax = 250

	readHeaderTimeout = 10 * time.Second
	// readBodyTimeout is how long a request's body may pause.
	readBodyTimeout = 30 * time.Second
	// writeTimeout is how long a piece of an answer may wait for its reader.
	writeTimeout = 30 * time.Second
	idleTimeout  = 2 * time.Minute
	// callTimeout bounds a call that doesn't wait for anything, whatever deadline the caller sets.
	callTimeout = 30 * time.Second
	// forwardTimeout bounds the hop to a saga's owner.
	forwardTimeout = 15 * time.Second
)
