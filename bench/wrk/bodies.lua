-- Posts the bodies of a file, one a line, in turn; says at the end what was counted, as JSON.
-- Each thread begins at a place of its own: what one has sent is in the server's memory when another sends it.
-- usage: wrk -t THREADS -s bodies.lua URL -- FILE THREADS
local bodies, at = {}, 0
local threads = 0

function setup(thread)
    thread:set("number", threads)
    threads = threads + 1
end

function init(args)
    for line in io.lines(args[1]) do bodies[#bodies + 1] = line end
    at = math.floor(#bodies * number / tonumber(args[2]))
end

function request()
    at = at % #bodies + 1
    return wrk.format("POST", "/invocations", { ["Content-Type"] = "application/json" }, bodies[at])
end

function done(summary, latency, requests)
    local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
    io.write(string.format(
        '\nsummary {"requests": %d, "refused": %d, "failed": %d, "seconds": %f, "mean_ms": %f, "p50_ms": %f, "p99_ms": %f, "max_ms": %f}\n',
        summary.requests, summary.errors.status, failed, summary.duration / 1e6, latency.mean / 1e3,
        latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, latency.max / 1e3))
end
