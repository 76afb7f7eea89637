-- wrk -s perf/wrk_topics.lua URL -- BODY_FILE TOPICS
-- POSTs of one body to topics URL0, URL1, … chosen at random; a summary as one line of JSON behind wrk's own report.

local requests = {}

function init(args)
  local file = assert(io.open(args[1], "rb"))
  wrk.method = "POST"
  wrk.body = file:read("*a")
  file:close()
  wrk.headers["Content-Type"] = "application/json"
  for number = 1, tonumber(args[2]) do
    requests[number] = wrk.format(nil, wrk.path .. number)
  end
  math.randomseed(1)
end

function request()
  return requests[math.random(#requests)]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format(
    'JSON {"requests":%d,"duration_us":%d,"bytes":%d,"failed":%d,"p50":%d,"p90":%d,"p99":%d,"max":%d}\n',
    summary.requests, summary.duration, summary.bytes,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50), latency:percentile(90), latency:percentile(99), latency.max))
end
