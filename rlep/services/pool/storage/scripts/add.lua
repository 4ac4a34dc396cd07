-- Insert records into a pool, all or nothing, each at most once. At most 1,000 prompts a call (Lua's `unpack`).
-- KEYS: state index changes totals labels reply, and what precedes a prompt's id in the keys of its records and of its
--       quarantine (of the same slot)
-- ARGV: writer, epoch or '', cap, call number, mark, number of labels, labels, then for each prompt: id, n, n times
--       (content id, which label from 1, record)
-- Returns '<call number>:<evicted>:<one letter a record>': i inserted, d duplicate, q quarantined before, c over the cap
local state, index, changes, totals, labels, answered, records, quarantine = unpack(KEYS)
local writer, epoch, cap, call, mark = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

-- The same call delivered again, after a reply that was lost: the same reply.
local before = redis.call('GET', answered)
if before and string.sub(before, 1, #call + 1) == call .. ':' then return before end

if redis.call('HEXISTS', state, 'sealed') == 1 then return redis.error_reply('SEALED pool') end
if epoch ~= '' then
  local newest = tonumber(redis.call('HGET', state, 'epoch:' .. writer) or epoch)
  if tonumber(epoch) < newest then return redis.error_reply('FENCED ' .. newest) end
  redis.call('HSET', state, 'epoch:' .. writer, epoch)
end

local added = {}
local function count(label, records, bytes)
  local sum = added[label]
  if not sum then
    sum = {0, 0}
    added[label] = sum
  end
  sum[1], sum[2] = sum[1] + records, sum[2] + bytes
end

-- Each label's number, and the four bytes of it that a stored record begins with.
local numbers, prefixes = {}, {}
local function number(which)
  local label = ARGV[6 + which]
  local id = redis.call('HGET', labels, label)
  if not id then
    id = redis.call('HINCRBY', state, 'labels', 1)
    redis.call('HSET', labels, label, id)
  end
  numbers[which], prefixes[which] = tostring(id), struct.pack('<I4', id)
end

-- Byte by byte: Lua's own < follows the server's locale.
local function above(a, b)
  for at = 1, #a do
    local x, y = string.byte(a, at), string.byte(b, at)
    if x ~= y then return x > y end
  end
  return false
end

-- What stays is the `cap` smallest content ids: a uniform choice that no order of arrival changes.
local function evict(key)
  local largest
  for _, id in ipairs(redis.call('HKEYS', key)) do
    if not largest or above(id, largest) then largest = id end
  end
  local value = redis.call('HGET', key, largest)
  count(tostring(struct.unpack('<I4', value)), -1, -#value)
  redis.call('HDEL', key, largest)
  return largest
end

local labelled = tonumber(ARGV[6])
for which = 1, labelled do number(which) end
local strict = redis.call('HEXISTS', state, 'aside') == 1
local letters, evicted, changed, fresh, at = {}, 0, {}, {}, 7 + labelled
while at <= #ARGV do
  local prompt, n, held = ARGV[at], tonumber(ARGV[at + 1])
  local key = records .. prompt
  at = at + 2
  for _ = 1, n do
    local id, which, record = ARGV[at], tonumber(ARGV[at + 1]), ARGV[at + 2]
    local letter = 'd'
    at = at + 3
    if strict and redis.call('HEXISTS', quarantine .. prompt, id) == 1 then
      letter = 'q'
    elseif redis.call('HSETNX', key, id, prefixes[which] .. record) == 1 then
      count(numbers[which], 1, #record + 4)
      letter = 'i'
      if held then
        held = held + 1
      else
        held = redis.call('HLEN', key)
        if held == 1 then fresh[#fresh + 1] = prompt end
      end
      if held > cap then
        held = held - 1
        if evict(key) == id then letter = 'c' else evicted = evicted + 1 end
      end
    end
    letters[#letters + 1] = letter
  end
  if held then changed[#changed + 1] = prompt end
end

if #changed > 0 then
  local generation = redis.call('HINCRBY', state, 'generation', 1)
  redis.call('HSET', state, 'mark', mark)
  if #fresh > 0 then redis.call('SADD', index, unpack(fresh)) end
  redis.call('RPUSH', changes, generation .. ' ' .. mark .. ' ' .. table.concat(changed, ' '))
  redis.call('LTRIM', changes, -512, -1)
  for label, sum in pairs(added) do
    redis.call('HINCRBY', totals, 'n:' .. label, sum[1])
    redis.call('HINCRBY', totals, 'b:' .. label, sum[2])
  end
end
local reply = call .. ':' .. evicted .. ':' .. table.concat(letters)
redis.call('SET', answered, reply, 'EX', 3600)
return reply
