"""What happens in Redis in one step: a script for each, with its keys and arguments as they come."""

from __future__ import annotations

CREATE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'json', ARGV[2])
redis.call('ZADD', KEYS[5], ARGV[6], ARGV[4])
if ARGV[3] == '' then
  redis.call('SADD', KEYS[2], ARGV[4])
  redis.call('SADD', KEYS[3], ARGV[4])
else
  redis.call('EXPIRE', KEYS[1], ARGV[3])
  redis.call('HINCRBY', KEYS[4], ARGV[5], 1)
end
redis.call('XADD', KEYS[6], ARGV[7], 'kind', 'state', 'data', ARGV[8])
if ARGV[3] ~= '' then redis.call('EXPIRE', KEYS[6], ARGV[9]) end
return 1
"""
SWAP = """
if redis.call('HGET', KEYS[1], 'version') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[2], 'json', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  redis.call('SREM', KEYS[2], ARGV[5])
  redis.call('SREM', KEYS[3], ARGV[5])
  redis.call('HINCRBY', KEYS[4], ARGV[6], 1)
end
if ARGV[7] ~= '' then
  redis.call('XADD', KEYS[5], ARGV[7], 'kind', 'state', 'data', ARGV[8])
  if ARGV[4] ~= '' then redis.call('EXPIRE', KEYS[5], ARGV[9]) end
end
return 1
"""
TELL = """
if redis.call('SISMEMBER', KEYS[2], ARGV[1]) == 0 then return 0 end
local change, place = tonumber(redis.call('HGET', KEYS[1], 'version')) + 1, 1
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
if last then
  local at, behind = string.match(last[1], '(%d+)-(%d+)')
  if tonumber(at) == change then place = tonumber(behind) + 1 end
end
redis.call('XADD', KEYS[3], string.format('%d-%d', change, place), 'kind', ARGV[2], 'data', ARGV[3])
local left = redis.call('XLEN', KEYS[3])
while left > tonumber(ARGV[4]) do
  local oldest = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', math.min(tonumber(ARGV[5]), left - 1))
  local gone = oldest[1][1]
  for _, entry in ipairs(oldest) do
    if entry[2][2] == 'progress' then
      gone = entry[1]
      break
    end
  end
  left = left - redis.call('XDEL', KEYS[3], gone)
end
return 1
"""
CREATE_GATE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1], 'json', ARGV[2])
redis.call('EXPIRE', KEYS[1], ARGV[3])
redis.call('ZADD', KEYS[2], ARGV[5], ARGV[4])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', ARGV[6])
return 1
"""
TAKE = """
local clock = redis.call('TIME')
local at = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local full, pace = tonumber(ARGV[1]), tonumber(ARGV[1]) / tonumber(ARGV[2])
local kept = redis.call('HMGET', KEYS[1], 'tokens', 'at')
local tokens = full
if kept[1] then
  tokens = math.min(full, tonumber(kept[1]) + math.max(0, at - tonumber(kept[2])) * pace)
end
local granted = 0
if tokens >= 1 then
  granted = 1
  tokens = tokens - 1
end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.9f', tokens), 'at', string.format('%.6f', at))
redis.call('PEXPIRE', KEYS[1], math.ceil((full - tokens) / pace * 1000) + 1000)
return {granted, string.format('%.9f', tokens)}
"""
CLAIM = """
local body = redis.call('HGET', KEYS[1], 'body')
if body and body ~= ARGV[1] then return 'conflict' end
if not redis.call('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[5]) then return 'in-flight' end
if not body then
  redis.call('HSET', KEYS[1], 'body', ARGV[1], 'id', ARGV[2])
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return redis.call('HGET', KEYS[1], 'id')
"""
RELEASE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
if ARGV[2] == '1' then redis.call('DEL', KEYS[1]) end
return 1
"""

RAISE = """
local known = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
if tonumber(ARGV[2]) >= known then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return redis.call('HGETALL', KEYS[1])
"""
